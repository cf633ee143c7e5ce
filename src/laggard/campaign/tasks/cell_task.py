"""Interface of a task: checked values of one command, and the document that they give."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, JsonValue


class CellTask(BaseModel, ABC):
    """Values of a command that needs no continuum; its fields are the keys of `vary`.

    Attributes:
        columns: columns of the results table that only this command has.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    columns: ClassVar[tuple[str, ...]]

    @classmethod
    def expand_values(
        cls,
        key: str,  # noqa: ARG003
        values: Sequence[JsonValue],
        folder: Path,  # noqa: ARG003
    ) -> list[JsonValue]:
        """Return the values of an axis, with patterns and ranges replaced by what they stand for.

        Args:
            key: key of the axis.
            values: values as the campaign file has them.
            folder: folder of the campaign file.

        Raises:
            InputError: a pattern or a range stands for nothing.
        """
        return list(values)

    def get_seed(self) -> int | None:
        """Return the seed, for the results table; None if nothing is drawn."""
        return None

    def list_inputs(self, folder: Path) -> Sequence[Path]:
        """Return the files that the task reads, so that a changed file makes a new cell.

        Raises:
            InputError: they are missing, or of no kind that the command reads.
        """
        del folder
        return ()

    @abstractmethod
    def compute(self, folder: Path) -> Mapping[str, object]:
        """Return the document of the task, in the form that `laggard run --json` writes.

        Args:
            folder: folder of the campaign file.

        Returns:
            The document; its object `columns` has the values of this command's own columns.
        """

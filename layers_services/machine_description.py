"""Description of the remote machines that `laggard plan` would give a scenario."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from laggard.core.run_schema import Record


class MachineDescription(Record, ABC):
    """Machines of a planned run, as values and as lines of text; every testbed has a subclass."""

    @abstractmethod
    def format_lines(self) -> Iterator[str]:
        """Yield the description as lines of text for people."""

"""Copies of a training's checkpoints, fetched while it goes on: its nodes may be taken away."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from laggard.core.errors import DeploymentError
from laggard.core.files.output_files import replace_file
from laggard.layers_services.ssh.fetch_files import RemoteSource, fetch_whole_file

LIMIT_S = 600.0
"""Seconds after which the transfer of one checkpoint is given up."""

_END_PATIENCE_S = 5.0
_log = logging.getLogger(__name__)


class _TooLateError(Exception):
    pass


@dataclass
class CheckpointCopies:
    """Copier of the newest checkpoint, in a thread of its own; a context manager.

    A checkpoint that is written during the transfer of another one follows it. The copy appears
    whole, in place of the one before.

    Args:
        source: folder of the checkpoint on its node.
        copy: local file of the same name that receives it.
    """

    source: RemoteSource
    copy: Path
    _size_bytes: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _has_ended: bool = False
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        # A daemon, so that an interrupt does not wait for a transfer.
        self._thread = threading.Thread(target=self._copy_all, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._has_ended = True
            self._changed.notify()
        self._thread.join(_END_PATIENCE_S)

    def fetch(self, size_bytes: int) -> None:
        """Fetch the checkpoint that has just been written, as soon as the one before is here."""
        with self._changed:
            self._size_bytes = size_bytes
            self._changed.notify()

    def _copy_all(self) -> None:
        while (size_bytes := self._wait_for_next()) is not None:
            try:
                self._copy_one(size_bytes)
            except (DeploymentError, OSError) as error:
                _log.warning("a checkpoint could not be fetched: %s", error)

    def _wait_for_next(self) -> int | None:
        """Return the size of the next checkpoint; None if there is none any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or self._size_bytes > 0)
            size_bytes, self._size_bytes = self._size_bytes, 0
            return None if self._has_ended else size_bytes

    def _copy_one(self, size_bytes: int) -> None:
        with suppress(_TooLateError), replace_file(self.copy) as file:
            # A newer checkpoint, of almost the same size, may have replaced it.
            fetch_whole_file(self.source, self.copy.name, 2 * size_bytes, file, LIMIT_S)
            with self._changed:
                # At the end of a run, the last checkpoint is fetched with the other files.
                if self._has_ended:
                    raise _TooLateError

"""Walk over the tasks of `workflow.yaml` as they are written, those inside blocks included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from laggard.core.yaml_source import KeyPath, YamlScalar, YamlSource, YamlValue

Stage = Literal["prepare", "launch", "finalize"]
STAGES: tuple[Stage, ...] = ("prepare", "launch", "finalize")
BLOCKS = ("block", "rescue", "always")
EVERY_STAGE = ("pre_tasks", "roles", "post_tasks", "handlers")
"""Keywords of a play whose entries are run in every stage that has tasks."""

Task = Mapping[YamlScalar, YamlValue]


@dataclass(frozen=True)
class PlayTask:
    """Task of a play, or role; a role that is only a name is `{role: NAME}`.

    Attributes:
        key: place in the file.
        stage: stage of the play, or keyword of `EVERY_STAGE`.
        chain: the play, the blocks around the task from the outermost on, and the task.
    """

    key: KeyPath
    stage: str
    chain: tuple[Task, ...]

    @property
    def task(self) -> Task:
        """Return the task itself."""
        return self.chain[-1]

    @property
    def target(self) -> str:
        """Return the machine that the task is delegated to, or else the hosts of its play."""
        delegated = [str(each["delegate_to"]) for each in self.chain if "delegate_to" in each]
        return delegated[-1] if delegated else str(self.chain[0].get("hosts", ""))


def iterate_plays(source: YamlSource) -> Iterator[tuple[int, Task]]:
    """Yield the number and the content of every play."""
    plays = source.value if isinstance(source.value, list) else []
    yield from ((i, play) for i, play in enumerate(plays) if isinstance(play, dict))


def iterate_tasks(
    source: YamlSource, stages: Sequence[str] = (*STAGES, *EVERY_STAGE)
) -> Iterator[PlayTask]:
    """Yield the tasks and roles of some stages, play by play."""
    for i, play in iterate_plays(source):
        for stage in stages:
            yield from _iterate_list(source, (i, stage), stage, (play,))


def _iterate_list(
    source: YamlSource, key: KeyPath, stage: str, chain: tuple[Task, ...]
) -> Iterator[PlayTask]:
    entries = source.at(key)
    for j, each in enumerate(entries if isinstance(entries, list) else []):
        entry: YamlValue = {"role": each} if stage == "roles" and isinstance(each, str) else each
        if isinstance(entry, dict):
            yield PlayTask((*key, j), stage, (*chain, entry))
            for block in BLOCKS:
                yield from _iterate_list(source, (*key, j, block), stage, (*chain, entry))


def iterate_texts(value: object) -> Iterator[str]:
    """Yield every text in a value, except the keys of mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from iterate_texts([*value.values()])
    elif isinstance(value, Sequence):
        for each in value:
            yield from iterate_texts(each)

"""The blocks of the plan that a planned training followed, as its record has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, TypeAdapter, ValidationError

from laggard.core.run_schema import RunRecord


class RecordedBlock(BaseModel):
    """Samples of a step that each host computes of a block, by the host's name."""

    devices: dict[str, int]


_BLOCKS = TypeAdapter[tuple[RecordedBlock, ...]](tuple[RecordedBlock, ...])


def find_planned_blocks(record: RunRecord | None) -> tuple[RecordedBlock, ...]:
    """Return the blocks of the plan; none if there is no plan, or if it is damaged."""
    return read_planned_blocks({} if record is None else record.strategy.parameters)


def read_planned_blocks(parameters: Mapping[str, object]) -> tuple[RecordedBlock, ...]:
    """Return the blocks of the plan among the parameters of a strategy."""
    plan = parameters.get("plan")
    if not isinstance(plan, dict):
        return ()
    try:
        return _BLOCKS.validate_python(plan.get("blocks", ()))
    except ValidationError:
        return ()


def list_teams(stages: Sequence[int], ranks: int) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each stage; all ranks together unless each rank has a stage.

    Examples:
        >>> list_teams([0, 1, 0], ranks=3)
        ((0, 2), (1,))
    """
    if len(stages) != ranks:
        return (tuple(range(ranks)),)
    return tuple(
        tuple(rank for rank, own in enumerate(stages) if own == stage)
        for stage in sorted(set(stages))
    )


def number_stages(blocks: Sequence[RecordedBlock], hosts: Sequence[str]) -> tuple[int, ...]:
    """Return a number for each host, which is that of all hosts with the same blocks and samples.

    There is none without blocks.
    """
    if not blocks:
        return ()
    work = [tuple(block.devices.get(host, 0) for block in blocks) for host in hosts]
    known = list(dict.fromkeys(work))
    return tuple(known.index(each) for each in work)

"""Step times of a run's hosts as measurements for the cost model.

The seconds of a step are those of its compute phases, so waits for other ranks, transfers and
reading do not count. A rank gives one measurement per usual batch size: the median over its steps,
which slow steps of a short time do not change. A size that is rare, such as that of the last batch
of an epoch, is left out, because its few steps are often its first ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from laggard.analysis.cost_model.fit_step_cost import StepMeasurement
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray, SpanColumns
from laggard.analysis.tables.load_run import RankHost, RunData
from laggard.core.cost_model.demand import ModelDemand
from laggard.core.errors import RunFolderError
from laggard.core.span_schema import COMPUTE_PHASES, Flag, Lane, Phase

_UNUSED = int(Flag.WARM_UP | Flag.TRUNCATED | Flag.CLOCK_SUSPECT)
_COMPUTE = [phase.code for phase in COMPUTE_PHASES]
_S = 1e-9
_MIN_STEPS = 5


@dataclass(frozen=True)
class HostKind:
    """Device class of hosts that compute alike.

    Attributes:
        processor: model of the processor or GPU, or tier and device class if it is not recorded.
        cpu_share: fraction of one core that the emulation gives to the host.

    Examples:
        >>> str(HostKind("Intel Xeon", 0.25))
        'Intel Xeon at 25 %'
    """

    processor: str
    cpu_share: float = 1.0

    def __str__(self) -> str:
        return (
            self.processor
            if self.cpu_share == 1.0
            else f"{self.processor} at {100 * self.cpu_share:.3g} %"
        )


@dataclass(frozen=True)
class HostMeasurement:
    """Measured step of one rank, with the name and the kind of its host."""

    host: str
    kind: HostKind
    step: StepMeasurement


def measure_host_steps(
    run: RunData, model: str, demand: ModelDemand
) -> tuple[HostMeasurement, ...]:
    """Return the measured steps of every rank of a run.

    Args:
        run: run of Laggard, with spans.
        model: name of the model that the run trained, together with its data.
        demand: demand of that model.

    Returns:
        One measurement per rank and usual batch size.

    Raises:
        RunFolderError: no rank has completed a step outside warm-up.
    """
    found = tuple(_measure_ranks(run, model, demand))
    if not found:
        raise RunFolderError(
            f"{run.folder}: no rank has completed a step after its warm-up, so no step time is"
            " known — give a run of more steps"
        )
    return found


def _measure_ranks(run: RunData, model: str, demand: ModelDemand) -> Iterator[HostMeasurement]:
    parts = [_sum_steps(spans) for spans in run.spans.parts()]
    rank, samples = (np.concatenate([part[column] for part in parts]) for column in (0, 1))
    seconds = np.concatenate([part[2] for part in parts])
    for host in run.hosts:
        own = (rank == host.rank) & (samples > 0) & (seconds > 0)
        sizes, steps = np.unique(samples[own], return_counts=True)
        usual = steps >= min(_MIN_STEPS, steps.max(initial=0))
        for count in sizes[usual].tolist():
            usual_s = float(np.median(seconds[own & (samples == count)]))
            yield HostMeasurement(
                host.host,
                find_host_kind(run, host),
                StepMeasurement(model, demand.step(count), usual_s),
            )


def _sum_steps(spans: SpanColumns) -> tuple[IntArray, IntArray, FloatArray]:
    """Return rank, samples and compute seconds of every completed step, [N] each.

    A client of a federated training takes many steps of its optimizer in a round, which is one step
    of the trace. Each of them begins with a forward pass. Those of one size are one step here, of
    their mean seconds: a host that is held to its share computes in bursts, and only their sum is
    exact.
    """
    counted = spans.where(
        (spans.lane == Lane.MAIN)
        & np.isin(spans.phase, _COMPUTE)
        & (spans.step >= 0)
        & ((spans.flags & _UNUSED) == 0)
    ).ordered()
    world = counted.max_rank + 1
    steps, is_forward = counted.step * world + counted.rank, counted.phase == Phase.FORWARD.code
    index = _number_passes(steps, is_forward)
    count = int(index[-1]) + 1 if len(index) else 0
    step, seconds = np.zeros(count, dtype=np.int64), np.zeros(count)
    step[index] = steps
    np.add.at(seconds, index, counted.dur_ns * _S)
    # Fetched samples are those of all passes, so the forward pass knows its own best.
    samples, others = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    np.maximum.at(samples, index, np.where(is_forward, counted.work, 0))
    np.maximum.at(others, index, counted.work)
    samples = np.where(samples > 0, samples, others)
    span = int(samples.max(initial=0)) + 1
    sizes, cells = np.unique(step * span + samples, return_inverse=True)
    means = np.bincount(cells, seconds) / np.maximum(np.bincount(cells), 1)
    return (sizes // span) % max(world, 1), sizes % span, means


def _number_passes(steps: IntArray, is_forward: BoolArray) -> IntArray:
    """Return the number of the pass to which each span belongs, [N].

    What comes before the first forward pass of a step belongs to it.

    Args:
        steps: number of the step of each span, ascending, [N].
        is_forward: whether a span is a forward pass, [N].
    """
    is_first = np.diff(steps, prepend=-1) != 0
    passes = np.cumsum(is_forward)
    before: IntArray = (passes - is_forward)[is_first][np.cumsum(is_first) - 1]
    return np.cumsum(is_first | (is_forward & (passes - before > 1))) - 1


def find_host_kind(run: RunData, host: RankHost) -> HostKind:
    """Return the kind of a rank's host.

    A device class with a name, such as a GPU, is its own kind. The class `cpu` is the model of the
    processor, as recorded for the machine of the host.
    """
    machines = () if run.record is None else run.record.hosts
    # A local run has one machine for all hosts, a remote run one per host.
    own = [each for each in machines if len(machines) == 1 or each.get("machine") == host.address]
    recorded = own[0].get("cpu") if host.device_class == "cpu" and own else None
    unnamed = "/".join(filter(None, (host.tier, host.device_class))) or host.host
    has_name = host.device_class not in {"", "cpu"}
    processor = host.device_class if has_name else str(recorded or unnamed)
    return HostKind(processor, host.cpu_share)

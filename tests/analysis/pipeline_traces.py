"""torch.profiler documents of a pipeline with data parallelism, in closed form.

Each rank runs one forward, one backward (1F1B). Its program is a list of computations and
exchanges, and a plain simulation tells when each of them begins and ends. A stage ends its step
with an all-reduce among its replicas. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tests.analysis.kineto_traces import NCCL, STREAM, Document, annotation, document, event

TRANSFER_US, REDUCE_US, UPDATE_US, HOST_US, BASE_US = 30.0, 100.0, 200.0, 300.0, 1000.0
Part = tuple[str, int]
"""A message of an exchange: `send` or `recv`, and the peer."""


@dataclass(frozen=True)
class Pipeline:
    """A job of `replicas` pipelines; the rank of a replica's stage is `stage * replicas + replica`.

    Attributes:
        blocking: whether exchanges with one neighbor are batched into one kernel that blocks the
            rank, as in Megatron; otherwise only receives block.
        prefetch: whether receives begin together with the computation before them.
        slow: factor on the computations of ranks.
        stage_us: duration of a forward pass, by stage; a backward pass takes twice as long.
    """

    stages: int = 2
    replicas: int = 2
    microbatches: int = 4
    steps: int = 10
    jitter: float = 0.03
    blocking: bool = True
    prefetch: bool = False
    slow: Mapping[int, float] = field(default_factory=dict)
    stage_us: Callable[[int], float] = lambda _: 1000.0
    seed: int = 0

    @property
    def world(self) -> int:
        return self.stages * self.replicas

    @property
    def healthy(self) -> Pipeline:
        return replace(self, slow={})

    def stage(self, rank: int) -> int:
        return rank // self.replicas

    def replicas_of(self, rank: int) -> tuple[int, ...]:
        first = rank - rank % self.replicas
        return tuple(range(first, first + self.replicas))


@dataclass(frozen=True)
class Operation:
    """A computation (`forward`, `backward`, `optimizer`) or an exchange."""

    kind: str
    parts: tuple[Part, ...] = ()


@dataclass
class Timed:
    step: int
    kind: str
    start: float
    end: float
    parts: tuple[Part, ...] = ()


def program(job: Pipeline, rank: int) -> Iterator[Operation]:
    """The operations of one step of a rank, without the end of the step."""
    stage, last = job.stage(rank), job.stages - 1
    ahead, behind = rank + job.replicas, rank - job.replicas
    warm = min(last - stage, job.microbatches)

    def exchange(*parts: Part) -> Iterator[Operation]:
        real = tuple((kind, peer) for kind, peer in parts if 0 <= peer < job.world)
        if job.blocking:
            yield from [Operation("exchange", real)] if real else []
        else:
            # Sends first: they do not block.
            yield from (Operation("exchange", (part,)) for part in real)

    for _ in range(warm):
        yield from exchange(("recv", behind))
        yield Operation("forward")
        yield from exchange(("send", ahead))
    steady = job.microbatches - warm
    yield from exchange(("recv", behind)) if steady else ()
    for number in range(steady):
        yield Operation("forward")
        yield from exchange(("send", ahead), ("recv", ahead))
        yield Operation("backward")
        yield from exchange(("send", behind), *([("recv", behind)] * (number < steady - 1)))
    for _ in range(warm):
        yield from exchange(("recv", ahead))
        yield Operation("backward")
        yield from exchange(("send", behind))


def run_pipeline(job: Pipeline) -> dict[int, list[Timed]]:
    """The operations of every rank with their times."""
    random = np.random.default_rng(job.seed)
    now = dict.fromkeys(range(job.world), BASE_US)
    done: dict[int, list[Timed]] = {rank: [] for rank in now}
    for step in range(job.steps):
        programs = {rank: list(program(job, rank)) for rank in now}
        noise = {
            rank: np.exp(random.normal(0.0, job.jitter, len(own) + 1)).tolist()
            for rank, own in programs.items()
        }
        _run_step(job, step, now, programs, noise, done)
        arrived = dict(now)
        for rank in now:
            now[rank] = max(arrived[mate] for mate in job.replicas_of(rank)) + REDUCE_US
            done[rank].append(Timed(step, "reduce", arrived[rank], now[rank]))
            end = now[rank] + UPDATE_US * noise[rank][-1]
            done[rank].append(Timed(step, "optimizer", now[rank], end))
            now[rank] = end
    return done


def _run_step(
    job: Pipeline,
    step: int,
    now: dict[int, float],
    programs: Mapping[int, list[Operation]],
    noise: Mapping[int, list[float]],
    done: Mapping[int, list[Timed]],
) -> None:
    at = dict.fromkeys(now, 0)
    reached: dict[tuple[int, int, str], list[float]] = {}
    """When a rank reached its sends to, or receives from, a peer, in order."""
    seen: set[tuple[int, int]] = set()
    counts: dict[tuple[int, int], list[tuple[Part, int]]] = {}
    moved = True
    while moved:
        moved = False
        for rank, own in programs.items():
            if at[rank] == len(own):
                continue
            operation, place = own[at[rank]], (rank, at[rank])
            start = now[rank]
            if operation.kind != "exchange":
                usual = job.stage_us(job.stage(rank)) * (1 + (operation.kind == "backward"))
                took = usual * job.slow.get(rank, 1.0) * noise[rank][at[rank]]
                now[rank] = start + took
                done[rank].append(Timed(step, operation.kind, start, now[rank]))
            else:
                if place not in seen:
                    seen.add(place)
                    numbered = []
                    for kind, peer in operation.parts:
                        times = reached.setdefault((rank, peer, kind), [])
                        numbered.append(((kind, peer), len(times)))
                        times.append(start)
                    counts[place] = numbered
                ends = [start]
                for (kind, peer), number in counts[place]:
                    if kind == "send" and not job.blocking:
                        continue
                    other = reached.get((peer, rank, "recv" if kind == "send" else "send"), [])
                    if number >= len(other):
                        break
                    ends.append(max(start, other[number]) + TRANSFER_US)
                else:
                    end = max(ends)
                    only_sends = all(kind == "send" for kind, _ in operation.parts)
                    shown = end if job.blocking or not only_sends else start + TRANSFER_US
                    done[rank].append(Timed(step, "exchange", start, shown, operation.parts))
                    now[rank] = end
                    at[rank] += 1
                    moved = True
                continue
            at[rank] += 1
            moved = True
    assert all(at[rank] == len(own) for rank, own in programs.items())


def measure_duration(job: Pipeline) -> float:
    """Microseconds from the first kernel to the last."""
    done = run_pipeline(job)
    return max(own[-1].end for own in done.values()) - BASE_US


def measure_lost_share(job: Pipeline) -> float:
    """The share of its duration that a job would not need without slow ranks."""
    slow, healthy = measure_duration(job), measure_duration(job.healthy)
    return (slow - healthy) / slow


def pipeline_documents(job: Pipeline) -> list[Document]:
    return [_to_document(job, rank, own) for rank, own in run_pipeline(job).items()]


def _to_document(job: Pipeline, rank: int, done: list[Timed]) -> Document:
    events: list[dict[str, Any]] = []
    number = 0
    for step in range(job.steps):
        own = [each for each in done if each.step == step]
        slot = HOST_US / (len(own) + 1)
        begin = own[0].start - HOST_US
        events.append(annotation(f"ProfilerStep#{step}", begin, begin + HOST_US))
        for place, each in enumerate(own):
            at, number = begin + (place + 0.1) * slot, number + 1
            call = at + 0.6 * slot
            events += _host_events(job, rank, each, at, call)
            arguments = {"cat": "cuda_runtime", "correlation": number}
            events.append(event("cudaLaunchKernel", call, call + 0.1 * slot, **arguments))
            start = each.start
            if job.prefetch and each.kind == "exchange" and each.parts[0][0] == "recv":
                before = [w for w in own[:place] if w.kind in ("forward", "backward")]
                start = before[-1].start if before else start
            events.append(_kernel(job, rank, replace(each, start=start), number))
    made = document(rank, events, job.world)
    made["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100"}]
    return made


def _host_events(
    job: Pipeline, rank: int, each: Timed, at: float, call: float
) -> list[dict[str, Any]]:
    until = call + 0.2
    if each.kind == "forward":
        return [annotation("DistributedDataParallel.forward", at, until)]
    if each.kind == "backward":
        return [event("autograd::engine::evaluate_function: Mm", at, until, tid=11)]
    if each.kind == "optimizer":
        return [annotation("Optimizer.step#SGD.step", at, until)]
    return [
        event("record_param_comms", at, call - 0.1, **_message_arguments(job, rank, part))
        for part in each.parts
    ]


def _message_arguments(job: Pipeline, rank: int, part: Part) -> dict[str, Any]:
    kind, peer = part
    ranks = list(range(rank % job.replicas, job.world, job.replicas))
    return {
        "Collective name": kind,
        "Process Group Name": "pp",
        "Process Group Ranks": ranks,
        "Group size": len(ranks),
        "Rank": ranks.index(peer),
        {"send": "Dst Rank", "recv": "Src Rank"}[kind]: peer,
    }


def _kernel(job: Pipeline, rank: int, each: Timed, number: int) -> dict[str, Any]:
    if each.kind == "exchange":
        single = len(each.parts) == 1
        return event(
            "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
            each.start,
            each.end,
            cat="kernel",
            tid=NCCL,
            correlation=number,
            **(_message_arguments(job, rank, each.parts[0]) if single else {}),
        )
    if each.kind == "reduce":
        ranks = job.replicas_of(rank)
        return event(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            each.start,
            each.end,
            cat="kernel",
            tid=NCCL + 1,
            correlation=number,
            **{
                "Collective name": "allreduce",
                "Process Group Name": "dp",
                "Process Group Ranks": list(ranks),
                "Group size": len(ranks),
            },
        )
    return event(
        f"gemm_{each.kind}", each.start, each.end, cat="kernel", tid=STREAM, correlation=number
    )

"""What slow places cost in torch.profiler traces of few and many steps: in truth and as found.

    python benchmarks/trace_costs.py [--steps 3 5 10 24]

Every trace is generated twice with the same jitter: with the slow place and without it (its twin).
The true cost is the difference of their durations. Both are written as the JSON files of a
profiler, read, and analyzed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.findings.analyze_run import analyze_run
from laggard.analysis.findings.answer import format_answer
from laggard.analysis.formats.registry import open_run

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.analysis.kineto_traces import GLOO, annotation, document, event, write
from tests.analysis.parallel_traces import Job, job_documents, run_job
from tests.analysis.pipeline_traces import Pipeline, measure_lost_share, pipeline_documents

PIECE_US, BACKWARD_US, TRANSFER_US, JITTER, STALL_US = 1000.0, 2000.0, 100.0, 0.03, 8000.0
Event = dict[str, Any]
Documents = Mapping[int, list[Event]]


def _one(_rank: int, _step: int, _piece: int) -> float:
    return 1.0


def _zero(_rank: int, _step: int, _piece: int) -> float:
    return 0.0


@dataclass(frozen=True)
class Training:
    """Training on hosts: pieces of a forward pass with an all-reduce after all but the last.

    Attributes:
        steps: number of steps.
        ranks: number of ranks.
        pieces: number of pieces of the forward pass.
        factor: factor on the time of a piece, by rank, step and piece.
        stall_us: time without a record before a piece.
        collect_us: time of garbage collection after a piece.
        copy_at_end: whether a copy of 2 us begins just before every all-reduce ends.
    """

    steps: int
    ranks: int = 4
    pieces: int = 1
    factor: Callable[[int, int, int], float] = _one
    stall_us: Callable[[int, int, int], float] = _zero
    collect_us: Callable[[int, int, int], float] = _zero
    copy_at_end: bool = False

    def healthy(self) -> Training:
        """Return the twin."""
        return replace(self, factor=_one, stall_us=_zero, collect_us=_zero)


class Recorder:
    """Recorder of a training's events on one true clock."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._random = np.random.default_rng(0)
        self.now = np.zeros(training.ranks)
        self.events: dict[int, list[Event]] = {rank: [] for rank in range(training.ranks)}

    def record(self) -> float:
        """Record all steps and return the duration in microseconds."""
        for step in range(self._training.steps):
            begin = self.now.copy()
            for rank, events in self.events.items():
                self._work(rank, "enumerate(DataLoader)#_S.__next__", 50.0)
                events.append(event("aten::to", self.now[rank], self.now[rank] + 20))
                self.now[rank] += 21
            for piece in range(self._training.pieces):
                self._forward(step, piece)
            self._backward()
            for rank, events in self.events.items():
                self._work(rank, "Optimizer.step#SGD.step", 100.0)
                events.append(annotation(f"ProfilerStep#{step}", begin[rank], self.now[rank] - 0.5))
        return float(self.now.max())

    def _work(self, rank: int, name: str, usual_us: float) -> None:
        took = usual_us * float(np.exp(self._random.normal(0.0, JITTER)))
        self.events[rank].append(annotation(name, self.now[rank], self.now[rank] + took))
        self.now[rank] += took + 1

    def _forward(self, step: int, piece: int) -> None:
        training = self._training
        for rank, events in self.events.items():
            self.now[rank] += training.stall_us(rank, step, piece)
            usual = PIECE_US * training.factor(rank, step, piece)
            self._work(rank, "DistributedDataParallel.forward", usual)
            collect_us = training.collect_us(rank, step, piece)
            if collect_us:
                events.append(event("gc", self.now[rank], self.now[rank] + collect_us))
                self.now[rank] += collect_us + 1
        if piece < training.pieces - 1:
            self._reduce()

    def _backward(self) -> None:
        for rank, events in self.events.items():
            took = BACKWARD_US * float(np.exp(self._random.normal(0.0, JITTER)))
            name = "autograd::engine::evaluate_function: AddmmBackward0"
            events.append(event(name, self.now[rank], self.now[rank] + took))
            self.now[rank] += took - 5
        self._reduce()

    def _reduce(self) -> None:
        end = float(self.now.max()) + TRANSFER_US
        sizes = {"Input Dims": [[250]], "Input type": ["float"]}
        for rank, events in self.events.items():
            at = self.now[rank]
            events.append(
                event(
                    "c10d::allreduce_",
                    at,
                    at + 3,
                    **{"Input Dims": [[[250]]], "Input type": ["TensorList"]},
                )
            )
            events.append(annotation("gloo:all_reduce", at + 1, end, tid=GLOO, **sizes))
            if self._training.copy_at_end:
                events.append(event("aten::copy_", end - 2, end))
            events.append(event("torch.distributed.ddp.reducer::copy_bucket", end + 1, end + 2))
            self.now[rank] = end + 3


def _is_slow(rank: int, _step: int, _piece: int) -> float:
    return 8.0 if rank == 3 else 1.0


TRAININGS: Mapping[str, Training] = {
    "compute": Training(0, factor=_is_slow),
    "host gap": Training(0, stall_us=lambda rank, _s, _p: STALL_US if rank == 3 else 0.0),
    "gc": Training(0, collect_us=lambda r, s, _p: STALL_US if (r, s % 3) == (3, 1) else 0.0),
    "copy at the end": Training(0, factor=_is_slow, copy_at_end=True),
    "float32": Training(0, factor=_is_slow),
    "one collective of several": Training(
        0, pieces=4, factor=lambda rank, _s, p: 8.0 if (rank, p) == (3, 1) else 1.0
    ),
    "clock offset 5 ms": Training(0, factor=_is_slow),
    "clock offset 10 s": Training(0, factor=_is_slow),
    "clock drift 50 ppm": Training(0, factor=_is_slow),
    "3 of 8 ranks": Training(0, ranks=8, factor=_is_slow),
    "five of eight slow": Training(
        0, ranks=8, factor=lambda rank, _s, _p: 8.0 if rank > 2 else 1.0
    ),
}
CLOCKS: Mapping[str, Callable[[float], float]] = {
    "float32": lambda us: float(np.float32(us / 1e6)) * 1e6,
    "clock offset 5 ms": lambda us: us + 5e3,
    "clock offset 10 s": lambda us: us + 1e7,
    "clock drift 50 ppm": lambda us: us * (1 + 50e-6),
}


def _write(kind: str, training: Training, events: Documents, folder: Path) -> Path:
    clock = CLOCKS.get(kind)
    for rank, own in events.items():
        if clock is not None and (kind == "float32" or rank == 1):
            for each in own:
                end = clock(each["ts"] + each["dur"])
                each["ts"] = clock(each["ts"])
                each["dur"] = max(end - each["ts"], 0.0)
    chosen = (1, 3, 6) if kind == "3 of 8 ranks" else tuple(events)
    return write(folder, [document(rank, events[rank], training.ranks) for rank in chosen])


def _describe(analysis: AnalysisResult) -> str:
    names = {f"{f.host} ({f.family})" for f in analysis.stragglers}
    return ", ".join(sorted(names)) or "nobody"


def _print_row(kind: str, steps: int, true: float, slow: Path, healthy: Path) -> None:
    run = open_run(slow)
    analysis, twin = analyze_run(run), analyze_run(open_run(healthy))
    found = 100 * analysis.lost_s / analysis.makespan_s
    if not analysis.costed:
        print(
            f"| {kind} | {steps} | {true:.1f} | not priced | {format_answer(run, analysis)[0]} | |"
        )
        return
    print(
        f"| {kind} | {steps} | {true:.1f} | {found:.1f} | {_describe(analysis)}"
        f" | {_describe(twin)} |"
    )


def _compare_training(kind: str, training: Training, scratch: Path) -> None:
    slow, healthy = Recorder(training), Recorder(training.healthy())
    slow_us, healthy_us = slow.record(), healthy.record()
    _print_row(
        kind,
        training.steps,
        100 * (slow_us - healthy_us) / slow_us,
        _write(kind, training, slow.events, scratch / f"{kind}-{training.steps}-slow"),
        _write(kind, training, healthy.events, scratch / f"{kind}-{training.steps}-twin"),
    )


def _compare_groups(steps: int, scratch: Path) -> None:
    """Compare tensor-parallel pairs with data parallelism across them, on devices."""
    job = Job(world=4, tensor=2, steps=steps, slow_us={3: 3000.0})
    jobs = {"slow": job, "twin": replace(job, slow_us={})}
    ends = {
        name: max(kernel.end for own in run_job(each).values() for kernel in own)
        - min(kernel.start for own in run_job(each).values() for kernel in own)
        for name, each in jobs.items()
    }
    folders = {
        name: write(scratch / f"groups-{steps}-{name}", job_documents(each))
        for name, each in jobs.items()
    }
    true = 100 * (ends["slow"] - ends["twin"]) / ends["slow"]
    _print_row("groups (TP pairs, DP)", steps, true, folders["slow"], folders["twin"])


def _compare_pipeline(stages: int, steps: int, scratch: Path) -> None:
    """Compare two replicas of a pipeline whose second stage does more than the others."""
    job = Pipeline(
        stages=stages,
        steps=steps,
        slow={3: 2.0},
        stage_us=lambda stage: 1500.0 if stage == 1 else 1000.0,
    )
    folders = [
        write(scratch / f"pipeline-{stages}-{steps}-{name}", pipeline_documents(each))
        for name, each in (("slow", job), ("twin", job.healthy))
    ]
    _print_row(f"pipeline, {stages} stages", steps, 100 * measure_lost_share(job), *folders)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[3, 5, 10, 24])
    chosen = parser.parse_args()
    print("| slow place | steps | true cost, % | found, % | named | named in the twin |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for kind, training in TRAININGS.items():
            for steps in chosen.steps:
                _compare_training(kind, replace(training, steps=steps), Path(folder))
        for steps in chosen.steps:
            _compare_groups(steps, Path(folder))
        for stages in (2, 4):
            for steps in chosen.steps:
                _compare_pipeline(stages, steps, Path(folder))


if __name__ == "__main__":
    main()

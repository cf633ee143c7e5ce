"""Dumps of torch's flight recorder: who arrived last, by durations or by launches; and refusals."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.analysis.formats.flight_recorder.collectives import find_period
from laggard.analysis.formats.registry import detect_format, open_run
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.build_timeline import build_timeline
from laggard.core.errors import TraceFormatError
from tests.analysis.flight_recorder_dumps import BASE_NS, MS, STEP_MS, Document, dump, entry, write


def notes(run: RunData) -> str:
    assert run.record is not None
    assert run.record.origin is not None
    assert run.record.origin.format == "flight_recorder"
    return " ".join(run.record.origin.notes)


@given(late=st.lists(st.integers(0, 20), min_size=2, max_size=4), timed=st.booleans())
@settings(max_examples=20, deadline=None)
def test_waits_add_up_to_who_was_late(
    tmp_path_factory: pytest.TempPathFactory, late: list[int], *, timed: bool
) -> None:
    made = [dump(rank, late, timed=timed) for rank in range(len(late))]
    run = open_run(write(tmp_path_factory.mktemp("dumps") / "run", made))
    assert set(run.steps.step.tolist()) == set(range(6))
    timeline = build_timeline(run)
    expected = [(max(late) - each) * 1e-3 for each in late]
    assert timeline.step_wait == pytest.approx(np.array([expected] * 6), abs=1e-9)
    assert ("TORCH_NCCL_ENABLE_TIMING=1" in notes(run)) is not timed


def test_with_durations_clocks_do_not_matter(tmp_path: Path) -> None:
    made = [dump(rank, [0, 10], timed=True, skew_ms=5000 * rank) for rank in range(2)]
    run = open_run(write(tmp_path / "run", made))
    assert build_timeline(run).step_wait[:, 0] == pytest.approx([0.01] * 6, abs=1e-9)


def test_buffers_that_begin_at_different_collectives_share_the_rest(tmp_path: Path) -> None:
    made = [dump(rank, [0, 10], timed=True) for rank in range(2)]
    made[1]["entries"] = made[1]["entries"][3:]
    run = open_run(write(tmp_path / "run", made))
    assert len(set(run.steps.step.tolist())) == 4
    assert "Collectives of incomplete steps were left out: 1." in notes(run)


def test_a_group_of_some_ranks_belongs_to_the_step_in_which_it_ends(tmp_path: Path) -> None:
    made = [dump(rank, [0, 0, 0], timed=True) for rank in range(3)]
    for rank in range(2):
        made[rank]["entries"] += [
            entry(
                step + 1, step * STEP_MS + 10 + rank, 3 - rank, process_group=["7", "tp"],
                time_discovered_completed_ns=BASE_NS + (step * STEP_MS + 13) * MS,
            )
            for step in range(6)
        ]  # fmt: skip
    run = open_run(write(tmp_path / "run", made))
    here = run.spans.where((run.spans.step == 2) & (run.spans.group >= 0))
    assert sorted(zip(here.rank.tolist(), here.group.tolist(), strict=True)) == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 2),
    ]  # fmt: skip


def test_a_hang_is_told_with_the_rank_that_did_not_come(tmp_path: Path) -> None:
    made = [dump(rank, [0, 0, 0], timed=True) for rank in range(3)]
    for rank in (0, 2):
        made[rank]["entries"].append(entry(13, 700, None, state="started"))
    told = notes(open_run(write(tmp_path / "run", made)))
    assert (
        "nccl:all_reduce number 13 of process group 0 was not over: rank 1 had not launched" in told
    )


def test_sends_are_counted_and_launches_together_are_one(tmp_path: Path) -> None:
    made = [dump(rank, [0, 10], timed=True) for rank in range(2)]
    for each in made:
        each["entries"] += [entry(1, 5, None, is_p2p=True), {**each["entries"][-1], "op_id": 99}]
    assert "Sends and receives were not read: 2." in notes(open_run(write(tmp_path / "run", made)))


def test_without_a_repetition_every_collective_is_a_step(tmp_path: Path) -> None:
    made = [dump(rank, [0, 10], timed=True, steps=3) for rank in range(2)]
    for each in made:
        for number, one in enumerate(each["entries"]):
            one["input_sizes"] = [[number]]
    assert len(set(open_run(write(tmp_path / "run", made)).steps.step.tolist())) == 6


@given(st.lists(st.sampled_from("abc"), max_size=12))
def test_the_period_is_the_shortest_repetition(signatures: list[str]) -> None:
    def repeats(length: int) -> bool:
        return all(a == b for a, b in zip(signatures, signatures[length:], strict=False))

    expected = next((n for n in range(1, len(signatures) // 2 + 1) if repeats(n)), 1)
    assert find_period(signatures) == expected


Change = Callable[[Path, list[Document]], object]
REFUSED: dict[str, tuple[Change, str]] = {
    "missing": (lambda f, _: (f / "dump0.json").unlink(), "the dumps of rank 0 of 2 ranks are missing"),
    "twice": (lambda _, made: made[1].update(rank=0), "rank 0 is also in dump0.json"),
    "unknown": (lambda _, made: made[1].pop("rank"), "neither the file nor its name contains its rank"),
    "no time": (
        lambda _, made: made[1]["entries"][3].update(time_created_ns="x"),
        "entry 3, time_created_ns: 'x' is not an integer",
    ),
    "no group": (
        lambda _, made: made[1]["entries"][3].update(process_group=3),
        "entry 3, process_group: 3 is not a name",
    ),
    "no entry": (lambda _, made: made[1]["entries"].append(5), "entry 12: 5 is not an object"),
    "apart": (
        lambda _, made: [e.update(collective_seq_id=99 + i) for i, e in enumerate(made[1]["entries"])],
        "no completed collective is in the dumps of all 2 ranks",
    ),
    "no list": (lambda _, made: made[1].pop("entries"), "it has no list entries"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_bad_dumps_are_refused_with_their_place(tmp_path: Path, kind: str) -> None:
    change, says = REFUSED[kind]
    made = [dump(rank, [0, 10], timed=True) for rank in range(2)]
    folder = write(tmp_path / "run", made)
    change(folder, made)
    for number, each in enumerate(made):
        if (folder / f"dump{number}.json").exists():
            (folder / f"dump{number}.json").write_text(json.dumps(each))
    with pytest.raises(TraceFormatError, match=says) as refused:
        open_run(folder)
    assert refused.value.fix


class Bomb:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return (Path("/nonexistent").joinpath, ("x",))


def test_a_pickle_is_refused_and_never_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    (tmp_path / "run").mkdir()
    content = pickle.dumps({"entries": [Bomb()]}, protocol=2)
    for attribute in ("loads", "load", "Unpickler"):
        monkeypatch.setattr(pickle, attribute, refuse)
    for name in ("nccl_trace_rank_0", "nccl_trace_rank_1"):
        (tmp_path / "run" / name).write_bytes(content)
    for path in (tmp_path / "run", tmp_path / "run" / "nccl_trace_rank_0"):
        with pytest.raises(TraceFormatError, match="_dump_nccl_trace_json"):
            open_run(path)


def test_a_profiler_s_trace_with_many_groups_is_no_dump(tmp_path: Path) -> None:
    groups = [{"pg_name": str(n), "ranks": list(range(200))} for n in range(200)]
    made = {"distributedInfo": {"pg_config": groups}, "traceEvents": []}
    (tmp_path / "rank0.json").write_text(json.dumps(made))
    assert detect_format(tmp_path / "rank0.json").name == "kineto"


def test_other_tools_are_refused_by_name(tmp_path: Path) -> None:
    names = {
        "trace_view.json": "Ascend", "x.nsys-rep": "Nsight", "x.qdrep": "Nsight", "x.sqlite": "Nsight",
        "comms.log": "DeepSpeed",
    }  # fmt: skip
    for name, tool in names.items():
        (tmp_path / name).write_text("Comm. Op            Message Size        Count\n")
        with pytest.raises(TraceFormatError, match=tool) as refused:
            open_run(tmp_path / name)
        assert "torch.profiler" in refused.value.fix
    for folder in ("ASCEND_PROFILER_OUTPUT", "node-1_ascend_pt"):
        (tmp_path / folder).mkdir()
        with pytest.raises(TraceFormatError, match="Ascend"):
            detect_format(tmp_path / folder)
    (tmp_path / "other.log").write_text("hello")
    with pytest.raises(TraceFormatError, match=r"\.log is not the suffix of a trace"):
        detect_format(tmp_path / "other.log")

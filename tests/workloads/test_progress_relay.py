"""Progress boards of several machines, each with its own memory and its own clock, joined by the
relay."""

from __future__ import annotations

import base64
from collections import deque
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laggard.workloads.coordination.progress_board import ProgressBoard
from laggard.workloads.coordination.progress_relay import (
    COUNTED_EVERY_S,
    PIECE_BYTES,
    Counted,
    PartGiven,
    PartPiece,
    ProgressHub,
    ProgressRelay,
    ProgressUpdate,
    SessionBegan,
    SessionEnded,
    SnapshotRequested,
    TrainingOver,
)
from laggard.workloads.coordination.progress_reporter import read_parts, write_part
from laggard.workloads.coordination.start_barrier import Reason
from laggard.workloads.output.worker_output import WorkerOutputDir

RANKS = {"head": (0, 1), "left": (2,), "right": (3, 4), "bare": ()}
OFFSETS_NS = {"head": 0, "left": 7_000_000_000, "right": -3_000_000_000, "bare": 5}
WORLD = 5
MODEL = 100_000
"""Parameters, so that a part is cut into several pieces."""


class Machines:
    """All machines; `deliver_all` carries update until there is none, each machine's in order."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 0.0
        self.output_dirs = {name: WorkerOutputDir(folder / name) for name in RANKS}
        for output_dir in self.output_dirs.values():
            output_dir.folder.mkdir()
        self.boards = {
            name: ProgressBoard(output_dir.progress_board, WORLD)
            for name, output_dir in self.output_dirs.items()
        }
        self.relays = {name: self._relay(name) for name in RANKS}
        self.hub = ProgressHub(list(RANKS), "head")
        self.carried: list[tuple[str, str, ProgressUpdate]] = []

    def _relay(self, name: str) -> ProgressRelay:
        offset_ns, output_dir = OFFSETS_NS[name], self.output_dirs[name]
        return ProgressRelay(
            output_dir,
            WORLD,
            RANKS[name],
            lambda t: t - offset_ns,
            lambda t: t + offset_ns,
            has_coordinator=name == "head",
        )

    def deliver_all(self) -> None:
        waiting = deque(self._poll_all())
        while waiting:
            source, update = waiting.popleft()
            for target in self.hub.route(source, update):
                self.carried.append((source, target, update))
                self.relays[target].apply_update(update)
            if not waiting:
                waiting.extend(self._poll_all())

    def _poll_all(self) -> list[tuple[str, ProgressUpdate]]:
        self.now_s += 2 * COUNTED_EVERY_S
        return [
            (name, update) for name, relay in self.relays.items() for update in relay.poll_updates()
        ]

    def board_of(self, rank: int) -> ProgressBoard:
        return next(self.boards[name] for name, ranks in RANKS.items() if rank in ranks)

    def give(self, rank: int, number: int, at_ns: int) -> None:
        """As `ProgressReporter` does, at a reference time."""
        name = next(name for name, ranks in RANKS.items() if rank in ranks)
        write_part(self.output_dirs[name], number, rank, torch.full((MODEL,), float(rank)), 1.0)
        self.boards[name].give(rank, number, at_ns + OFFSETS_NS[name])


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    made = Machines(tmp_path)
    monkeypatch.setattr(
        "laggard.workloads.coordination.progress_relay.time.monotonic", lambda: made.now_s
    )
    return made


def test_the_coordinator_counts_the_samples_of_all_machines(machines: Machines) -> None:
    for rank in range(WORLD):
        for _ in range(rank + 1):
            machines.board_of(rank).add(rank, 10)
    machines.deliver_all()
    assert machines.boards["head"].samples == 150
    assert [machines.boards["head"].steps(rank) for rank in range(WORLD)] == [1, 2, 3, 4, 5]
    assert machines.boards["left"].samples == 30, "nobody else needs to know"
    machines.board_of(3).add(3, 0)
    machines.deliver_all()
    assert machines.boards["head"].steps(3) == 5, "a step that was learnt nothing from"


def test_a_step_is_told_no_more_often_than_it_has_to_be(machines: Machines) -> None:
    relay = machines.relays["left"]
    machines.now_s = 1.0
    machines.boards["left"].add(2, 10)
    assert [type(update) for update in relay.poll_updates()] == [Counted]
    machines.boards["left"].add(2, 10)
    machines.boards["left"].add(2, 10)
    assert list(relay.poll_updates()) == []
    machines.now_s += 2 * COUNTED_EVERY_S
    assert list(relay.poll_updates()) == [Counted(rank=2, samples=30, steps=3)]


def test_a_snapshot_is_asked_of_all_and_comes_whole(machines: Machines) -> None:
    number = machines.boards["head"].request_snapshot()
    machines.deliver_all()
    assert {progress_board.requested_snapshots for progress_board in machines.boards.values()} == {
        number
    }
    for rank in range(WORLD - 1):
        machines.give(rank, number, 1_000 + rank)
    machines.deliver_all()
    assert machines.boards["head"].complete_ns(number) is None
    machines.give(4, number, 9_000)
    machines.deliver_all()
    assert machines.boards["head"].complete_ns(number) == 9_000, "in the coordinator's clock"
    mean = read_parts(machines.output_dirs["head"], number, range(WORLD), torch.float32)
    torch.testing.assert_close(mean, torch.full((MODEL,), 2.0))
    assert not [
        path
        for output_dir in machines.output_dirs.values()
        for path in output_dir.folder.glob("*snapshot*")
    ]


def test_what_else_is_told_goes_between_the_pieces_of_a_part(machines: Machines) -> None:
    relay = machines.relays["left"]
    machines.give(2, 1, 0)
    kinds = []
    for stage in (1, 2):
        machines.boards["left"].reach(2, stage)
        kinds += [type(update).__name__ for update in relay.poll_updates()]
    assert kinds == ["PartPiece", "StageReached", "PartPiece", "StageReached"]


def test_the_end_is_told_after_the_last_snapshot_that_was_asked_for(machines: Machines) -> None:
    """Who hears of the end gives the snapshot after that one."""
    machines.boards["head"].request_snapshot()
    machines.boards["head"].end(Reason.STEPS)
    updates = list(machines.relays["head"].poll_updates())
    assert updates == [SnapshotRequested(number=1), TrainingOver(reason=Reason.STEPS)]
    for name in ("left", "right", "bare"):
        for update in updates:
            machines.relays[name].apply_update(update)
        assert (machines.boards[name].requested_snapshots, machines.boards[name].ended) == (
            1,
            Reason.STEPS,
        )


@given(
    lost=st.lists(st.sampled_from(range(1, WORLD)), unique=True, max_size=3),
    sees=st.sampled_from(list(RANKS)),
)
def test_who_is_gone_and_who_has_ended_everybody_knows(
    tmp_path_factory: pytest.TempPathFactory, lost: list[int], sees: str
) -> None:
    machines = Machines(tmp_path_factory.mktemp("machines"))
    for rank in lost:
        machines.boards[sees].leave(rank)
        machines.boards["head"].leave(rank)  # several notice it
    left = tuple(rank for rank in range(WORLD) if rank not in lost)
    for rank in left:
        assert not machines.board_of(rank).reached(1)
        machines.board_of(rank).reach(rank, 1)
    machines.deliver_all()
    for progress_board in machines.boards.values():
        assert progress_board.present == left
        assert progress_board.reached(1)
    updates = [
        (target, update.rank)
        for _, target, update in machines.carried
        if isinstance(update, SessionEnded)
    ]
    assert len(updates) <= 2 * len(lost) * (len(RANKS) - 1), "nobody tells what was updates"


def test_who_joins_again_everybody_knows(machines: Machines) -> None:
    """Of it, no snapshot is expected that was requested while it was away."""
    machines.boards["right"].leave(3, 0)
    machines.deliver_all()
    number = machines.boards["head"].request_snapshot()
    machines.deliver_all()
    machines.boards["right"].join(3, 1)
    machines.deliver_all()
    for progress_board in machines.boards.values():
        assert progress_board.present == tuple(range(WORLD))
        assert progress_board.session(3) == 1
    for rank in (0, 1, 2, 4):
        machines.give(rank, number, 1_000)
    machines.deliver_all()
    assert machines.boards["head"].complete_ns(number) == 1_000
    assert machines.boards["head"].request_snapshot() == number + 1
    assert machines.boards["head"].complete_ns(number + 1) is None
    sent = [
        (source, target)
        for source, target, update in machines.carried
        if isinstance(update, SessionBegan)
    ]
    assert sent == [("right", name) for name in RANKS if name != "right"]


def test_who_is_killed_when_all_is_over_is_not_waited_for(machines: Machines) -> None:
    """Who ends because training is over has not left it, for its peers; its machine knows
    better."""
    machines.boards["head"].end(Reason.TIME)
    machines.deliver_all()
    for rank in (0, 1, 3, 4):
        machines.give(rank, 1, 1_000)
    machines.deliver_all()
    assert machines.boards["head"].complete_ns(1) is None
    machines.relays["left"].remove_rank(2)
    machines.deliver_all()
    assert machines.boards["head"].complete_ns(1) == 1_000


def test_updates_for_the_coordinator_go_nowhere_else() -> None:
    hub = ProgressHub(["head", "left", "right"], "head")
    piece = PartPiece(
        rank=2, number=1, content=base64.b64encode(bytes(PIECE_BYTES)).decode(), last=True
    )
    assert hub.route("left", piece) == ("head",)
    assert hub.route("left", PartGiven(rank=2, number=1, time_ns=0)) == ("head",)
    assert hub.route("head", Counted(rank=0, samples=1, steps=1)) == ()
    assert hub.route("left", SessionEnded(rank=2, session=0)) == ("head", "right")
    assert hub.route("head", TrainingOver(reason=Reason.TIME)) == ("left", "right")

"""What a worker counts is what others read."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

from laggard.core.work_counter import WorkCounter, WorkDone


def test_an_uncounted_worker_has_done_nothing(tmp_path: Path) -> None:
    with WorkCounter(tmp_path / "work") as counter:
        assert counter.read() == WorkDone()
        assert counter.steps == 0


def _count(path: Path) -> None:
    with WorkCounter(path) as counter:
        counter.add(5, 8)
        counter.add(6, 9)


def test_another_process_s_steps_are_seen_at_once(tmp_path: Path) -> None:
    with WorkCounter(tmp_path / "work") as reader:
        worker = multiprocessing.get_context("fork").Process(
            target=_count, args=(tmp_path / "work",)
        )
        worker.start()
        worker.join()
        assert reader.read() == WorkDone(steps=2, full_speed_ns=11, cpu_ns=17)


def test_a_count_outlives_its_counter(tmp_path: Path) -> None:
    _count(tmp_path / "work")
    _count(tmp_path / "work")
    with WorkCounter(tmp_path / "work") as counter:
        assert counter.steps == 4

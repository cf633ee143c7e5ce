"""The watcher on streams as ranks leave them: what it reads, when it looks, and what it leaves in
the run folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from laggard.analysis.evaluate.synthetic.run_generator import (
    Injection,
    Noise,
    Tier,
    TraceSpec,
    generate_run,
)
from laggard.analysis.tables.load_run import RunData, read_alarms
from laggard.core.errors import RunFolderError
from laggard.core.hosts import Host
from laggard.run.alarm_display import AlarmDisplay
from laggard.run.straggler_watcher import StragglerWatcher
from laggard.run.straggler_watcher_plan import WatcherPlan
from laggard.run_folder.display import SilentDisplay
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.tracing.row_types import LINK_ROW, SPAN_ROW
from laggard.workloads.tracing.stream import RowStream

ZERO_NS = 5_000_000_000


class Heard(SilentDisplay):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def show_message(self, text: str) -> None:
        self.texts.append(text)


class Training:
    """Streams a generated run into a worker output folder, as slowly as its dilation says."""

    def __init__(self, run: RunData, folder: Path, dilation: float) -> None:
        output_dir = WorkerOutputDir(folder / "workers")
        output_dir.folder.mkdir()
        output_dir.zero.write_text(json.dumps({"zero_ns": ZERO_NS}))
        self.run, self.output_dir, self.dilation = run, output_dir, dilation
        self.spans = [RowStream(output_dir.spans(rank), SPAN_ROW) for rank in range(run.world_size)]
        self.links = RowStream(output_dir.links, LINK_ROW)
        self.hosts = sorted({*run.links.src.tolist(), *run.links.dst.tolist()})
        self.plan = WatcherPlan(
            output_dir=str(output_dir.folder),
            alarms=str(folder / "alarms.jsonl"),
            hosts=tuple((host.host, host.address, host.tier) for host in run.hosts),
            sampled=tuple(self.hosts),
            lockstep=True,
            dilation=dilation,
        )

    def real_ns(self, virtual_ns: int) -> int:
        return ZERO_NS + round(virtual_ns * self.dilation)

    def stream(self, first: int, last: int) -> None:
        table = self.run.spans
        for row in np.flatnonzero((table.step >= first) & (table.step < last)).tolist():
            values = {name: int(getattr(table, name)[row]) for name in SPAN_ROW.names or ()}
            begin = self.real_ns(values["start_ns"])
            values["dur_ns"] = self.real_ns(values["start_ns"] + values["dur_ns"]) - begin
            values["start_ns"] = begin
            self.spans[values["rank"]].append(tuple(values.values()))
        begin_ns, end_ns = (
            int(table.start_ns[table.step >= step].min(initial=2**60)) for step in (first, last)
        )
        links = self.run.links
        for row in np.flatnonzero((links.time_ns >= begin_ns) & (links.time_ns < end_ns)).tolist():
            sample = {
                name: getattr(links, name)[row]
                for name in LINK_ROW.names or ()
                if hasattr(links, name)
            }
            sample["delivery_rate_bytes_per_s"] = (
                links.delivery_rate_mbps[row] / 8e-6 / self.dilation
            )
            sample["src"], sample["dst"] = (
                self.hosts.index(str(sample[end])) for end in ("src", "dst")
            )
            for name in ("rtt_us", "min_rtt_us", "busy_us", "last_send_ms"):
                sample[name] = sample[name] * self.dilation
            sample["time_ns"] = self.real_ns(int(links.time_ns[row]))
            self.links.append(tuple(int(sample[name]) for name in LINK_ROW.names or ()))
        for each in (*self.spans, self.links):
            each.flush()


@pytest.mark.parametrize("dilation", [1.0, 4.0])
def test_what_is_slow_is_told_while_the_run_goes_on_and_left_in_its_folder(
    tmp_path: Path, dilation: float
) -> None:
    injected = (
        Injection("compute", 2.0, 60, 99, rank=1),
        Injection("network", 4.0, 120, 159, tiers=("cloud", "edge")),
    )
    tiers = (Tier("cloud", 2), Tier("edge", 2))
    run = generate_run(
        TraceSpec(
            tiers=tiers,
            steps=200,
            noise=Noise(sigma=0.03, transfer_sigma=0.05),
            injections=injected,
        )
    )
    training = Training(run, tmp_path, dilation)
    watcher, heard = StragglerWatcher(training.plan), Heard()
    alarms = tmp_path / "alarms.jsonl"
    hosts = [
        Host(host.host, host.tier, "trainer", 1, number) for number, host in enumerate(run.hosts, 1)
    ]
    teller = AlarmDisplay(alarms, hosts, heard)
    when: dict[str, int] = {}
    for step in range(0, 200, 10):
        training.stream(step, step + 10)
        watcher.poll()
        teller.update()
        for text in heard.texts:
            when.setdefault(text.split()[0] + ("" if "again" not in text else " again"), step + 10)
    assert when == {
        "cloud.trainer.1.2": 70,
        "cloud.trainer.1.2 again": 110,
        "Transfers": 130,
        "Transfers again": 170,
    }
    slow, link = read_alarms(alarms)
    assert (slow.host, slow.family, slow.since_step, slow.last_step) == (
        "cloud.trainer.1.2",
        "compute",
        60,
        99,
    )
    assert slow.slowdown == pytest.approx(2.0, rel=0.05)
    assert slow.since_s == pytest.approx(
        run.spans.start_ns[run.spans.step == 60].min() / 1e9, abs=0.001
    )
    assert (link.family, link.since_step, link.last_step) == ("network", 120, 159)
    assert link.link == ("cloud.trainer.1.2", "edge.trainer.1.1")
    assert slow.reported_s is not None


def test_before_the_first_step_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    run = generate_run(TraceSpec(tiers=(Tier("edge", 2),), steps=5))
    training = Training(run, tmp_path, 1.0)
    training.output_dir.zero.unlink()
    watcher = StragglerWatcher(training.plan)
    watcher.poll()
    assert watcher.alarm_count == 0


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "alarms.jsonl").write_text('{"number": "many"}\n')
    with pytest.raises(RunFolderError, match="a line is not a valid alarm"):
        read_alarms(tmp_path / "alarms.jsonl")

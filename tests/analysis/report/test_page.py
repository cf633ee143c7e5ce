"""The report: one file, right numbers, nothing unescaped, nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from laggard.analysis import report
from laggard.analysis.evaluate.synthetic.run_generator import TraceSpec, generate_run
from laggard.analysis.findings.analysis_result import AnalysisResult, analyze_lockstep
from laggard.analysis.findings.answer import format_answer
from laggard.analysis.formats.bytedance.from_run import run_to_operations
from laggard.analysis.formats.bytedance.parquet_file import write_operations
from laggard.analysis.formats.registry import open_run
from laggard.analysis.report import write_report
from laggard.analysis.report.fidelity import build_fidelity_part
from laggard.analysis.report.figures import progress
from laggard.analysis.report.figures.drawing import draw_figure
from laggard.analysis.report.figures.registry import select_figure_kinds
from laggard.analysis.report.outcome import build_outcome_tiles
from laggard.analysis.report.run_setup import build_setup_tables, format_hosts_line, list_facts
from laggard.analysis.report.stragglers import MOST_ROWS, build_straggler_rows
from laggard.analysis.report.write import keep_units
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.write_run import write_run
from laggard.core.run_schema import FidelityCheck, Finding, HostEnergy, ReservedJob

VOID = {"meta", "img", "br", "source", "link", "input", "hr"}


class Outline(HTMLParser):
    """Tags in balance, headings in order, attributes and visible text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[int] = []
        self.text = ""
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" in self.open:
            self.scripts.append(data)
        if not {"style", "script"} & set(self.open):
            data = data.replace("\N{NO-BREAK SPACE}", " ").replace("\N{WORD JOINER}", "")
            self.text += data if "pre" in self.open else f"{data} "


def read(path: Path) -> Outline:
    outline = Outline()
    outline.feed(path.read_text(encoding="utf-8"))
    outline.close()
    assert outline.open == []
    return outline


@pytest.fixture(scope="module")
def page(
    quickstart_run: RunData,
    quickstart_analysis: AnalysisResult,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    return write_report(quickstart_run, quickstart_analysis, tmp_path_factory.mktemp("report"))


def test_a_remote_run_tells_its_clocks_nodes_and_energy(quickstart_run: RunData) -> None:
    """And calls its time what it is: real."""
    assert quickstart_run.record is not None
    assert quickstart_run.record.outcome is not None
    far = tuple(
        replace(host, clock_error_ns=round(host.rank * 4e5)) for host in quickstart_run.hosts
    )
    job = ReservedJob(
        testbed="g5k", site="lyon", job_id=7, name="laggard-x", nodes=8, released=True
    )
    drawn = tuple(
        HostEnergy(host=name, joules=1500.0, metric="wattmetre_power_watt")
        for name in (far[0].host, far[1].host)
    )
    record = quickstart_run.record.model_copy(
        update={"dilation": 1.0, "jobs": (job,), "energy": drawn}
    )
    run = replace(quickstart_run, hosts=far, record=record)
    known = dict(list_facts(run))
    assert (
        known["Clocks"]
        == f"one per host, aligned; the largest possible error is 2.8 ms ({far[7].host})"
    )
    assert known["Reservations"] == "laggard-x (7) at lyon, 8 nodes, released"
    tiles = {tile.name: tile for tile in build_outcome_tiles(run, None)}
    assert (tiles["Energy"].value, tiles["Energy"].remark) == ("3 kJ", "the 2 metered of 8 hosts")
    assert tiles["Makespan"].remark == "first step to last"


def test_it_opens_with_the_answer(
    page: Path, quickstart_run: RunData, quickstart_analysis: AnalysisResult
) -> None:
    said = format_answer(quickstart_run, quickstart_analysis)
    outline = read(page)
    assert page.name == "report.html"
    assert f"<h1>{said[0]}</h1>" in page.read_text(encoding="utf-8").replace(
        "\N{NO-BREAK SPACE}", " "
    )
    places = [outline.text.index(s) for s in said]
    assert places == sorted(places)
    assert places[-1] < outline.text.index("Outcome")


def test_parts_come_in_order(page: Path) -> None:
    source = page.read_text(encoding="utf-8")
    order = [
        source.index(f'<h2 id="{part}"')
        for part in ("outcome", "stragglers", "fidelity", "figures", "how", "words")
    ]
    assert order == sorted(order)


def test_it_is_well_formed_and_accessible(page: Path) -> None:
    outline = read(page)
    tags = outline.tags
    assert ("html", {"lang": "en"}) in tags
    assert outline.headings.count(1) == 1
    assert all(
        after - before <= 1
        for before, after in zip(outline.headings, outline.headings[1:], strict=False)
    )
    assert all(
        (attributes.get("alt") or "").endswith(".") for tag, attributes in tags if tag == "img"
    )
    assert all("scope" in attributes for tag, attributes in tags if tag == "th")
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    anchors = [a["href"] for tag, a in tags if tag == "a"]
    assert all((href or "").removeprefix("#") in ids for href in anchors)


def test_it_stands_alone(page: Path) -> None:
    outline = read(page)
    for tag, attributes in outline.tags:
        assert tag not in {"link", "iframe", "object", "embed", "base", "form"}
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "srcset"):
            assert attributes.get(name) is None or str(attributes[name]).startswith(
                "data:image/svg+xml;base64,"
            )
    assert "url(" not in page.read_text(encoding="utf-8")


def policy(outline: Outline) -> str:
    return next(
        str(a["content"])
        for tag, a in outline.tags
        if a.get("http-equiv") == "Content-Security-Policy"
    )


def test_its_policy_names_the_scripts_that_are_ours(page: Path) -> None:
    outline = read(page)
    folder = Path(report.__file__).parent
    assert outline.scripts == [
        (folder / name).read_text() for name in ("sorting.js", "timeline.js")
    ]
    digests = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in outline.scripts
    ]
    scripts = " ".join(f"'sha256-{digest}'" for digest in digests)
    assert (
        policy(outline)
        == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {scripts}"
    )


def test_without_scripts_the_picture_is_there_and_the_timeline_is_not(page: Path) -> None:
    tags = read(page).tags
    assert [("hidden" in a) for _, a in tags if a.get("class") == "timeline"] == [True]
    assert not [tag for tag, a in tags if tag == "picture" and "hidden" in a]
    assert not [tag for tag, _ in tags if tag == "noscript"]


def test_figures_are_there_wide_narrow_and_as_files(page: Path) -> None:
    tags = [tag for tag, _ in read(page).tags]
    assert tags.count("figure") == tags.count("img") == tags.count("source") == 6
    assert len(list((page.parent / "figures").iterdir())) == 12
    assert page.stat().st_size < 3_000_000


def test_the_numbers_are_those_of_the_run(page: Path) -> None:
    text = " ".join(read(page).text.split())
    for said in (
        "Makespan 112 s",
        "edge.trainer.1.3 (rank 6)",
        "edge.trainer.1.1 → cloud.trainer.1.1",
        "steps 120-165",
        "Yes: all 10 measured quantities are within tolerance.",
        "8 hosts: 2 cloud, 2 fog, 4 edge",
        "laggard run experiments/quickstart --set workload.batch_size=64",
        "torch 2.13.0",
    ):
        assert said in text


def test_nothing_a_run_says_becomes_markup(
    quickstart_run: RunData, quickstart_analysis: AnalysisResult, tmp_path: Path
) -> None:
    evil = "<script>alert(1)</script>\"'&"
    assert quickstart_run.record is not None
    hosts = tuple(
        replace(h, host=f"{evil}{h.rank}", tier=evil, address=evil) for h in quickstart_run.hosts
    )
    record = quickstart_run.record.model_copy(
        update={
            "id": evil,
            "scenario": evil,
            "status": "failed",
            "command": (evil,),
            "versions": {evil: evil},
            "git": evil,
            "testbed": evil,
            "backend": evil,
            "started": evil,
            "error": evil,
            "warnings": (evil,),
            "hosts": ({evil: evil},),
        }
    )
    check = FidelityCheck(
        kind="cpu",
        src=evil,
        dst=evil,
        requested=1,
        measured=9,
        unit=evil,
        tolerance=1,
        ok=False,
        detail=evil,
    )
    findings = tuple(f.model_copy(update={"host": evil}) for f in quickstart_analysis.findings)
    run = replace(quickstart_run, hosts=hosts, record=record, fidelity=(check,))
    analysis = replace(quickstart_analysis, hosts=hosts, findings=findings, notes=(evil,))
    path = write_report(run, analysis, tmp_path)
    outline = read(path)
    folder = Path(report.__file__).parent
    assert outline.scripts == [
        (folder / name).read_text() for name in ("sorting.js", "timeline.js")
    ]
    timeline = next(
        str(a["data-timeline"]) for _, a in outline.tags if a.get("class") == "timeline"
    )
    assert json.loads(timeline)["rows"][0].startswith("<script>")
    assert outline.text.count("<script>alert(1)</script>") > 20


@pytest.mark.parametrize("status", ["failed", "unfaithful", "interrupted"])
def test_a_run_that_never_trained_has_a_report(
    quickstart_run: RunData, tmp_path: Path, status: str
) -> None:
    assert quickstart_run.record is not None
    record = quickstart_run.record.model_copy(
        update={"status": status, "outcome": None, "error": "line one\nline two"}
    )
    text = read(write_report(replace(quickstart_run, record=record), None, tmp_path)).text
    assert status in text
    assert "line one\nline two" in text
    assert "Fidelity" in text
    assert not (tmp_path / "figures").exists()


@pytest.mark.long
def test_a_run_whose_emulation_slipped_says_so_first(
    quickstart_run: RunData, quickstart_analysis: AnalysisResult, tmp_path: Path
) -> None:
    assert quickstart_run.record is not None
    record = quickstart_run.record.model_copy(
        update={"status": "unfaithful", "error": "12.0 to 18.4 s: a core was missed"}
    )
    text = read(
        write_report(replace(quickstart_run, record=record), quickstart_analysis, tmp_path)
    ).text
    assert (
        0
        < text.index("do not rely on the numbers")
        < text.index("of the makespan")
        < text.index("12.0 to 18.4 s")
    )
    assert "out of tolerance during training" in text
    assert "are within tolerance" not in text


@pytest.mark.long
def test_a_folder_without_run_json_has_a_report(
    quickstart_run: RunData, quickstart_analysis: AnalysisResult, tmp_path: Path
) -> None:
    text = read(
        write_report(replace(quickstart_run, record=None), quickstart_analysis, tmp_path)
    ).text
    assert "This run did not end" in text
    assert "Makespan so far" in text


@pytest.mark.long
def test_a_level_run_says_there_is_no_straggler(
    level_run: RunData, level_analysis: AnalysisResult, tmp_path: Path
) -> None:
    text = read(write_report(level_run, level_analysis, tmp_path)).text
    assert "No straggler" in text
    assert "No host or link was slow enough for long enough" in text
    assert "Not measured" in text


def test_the_report_is_replaced_whole(level_run: RunData, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("old")
    write_report(level_run, None, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("38 % of 12 min 5 s", "38~% of 12~min 5~s"),
        ("4 steps", "4 steps"),
        ("96.5 Mbit/s", "96.5~Mbit/s"),
        (3, 3),
        ("steps 5-19", "steps 5-|19"),
    ],
)
def test_a_number_keeps_its_unit(said: object, kept: object) -> None:
    result = keep_units(said)
    if isinstance(result, str):
        result = result.replace("\N{NO-BREAK SPACE}", "~").replace("\N{WORD JOINER}", "|")
    assert result == kept


def test_misses_come_first_and_open_the_list(quickstart_run: RunData) -> None:
    missed = quickstart_run.fidelity[-1].model_copy(update={"ok": False, "measured": 9.0})
    part = build_fidelity_part((*quickstart_run.fidelity[:-1], missed))
    assert part.verdict.text == "No: 1 of 10 measured quantities missed their tolerance."
    assert part.verdict.tone == "bad"
    assert [row.ok for row in part.shown] == [False] + [True] * 9
    assert part.folded == ()
    assert [(k.name, k.within, k.missed) for k in part.kinds][-1] == (
        "CPU slowdown",
        "3 of 4",
        True,
    )


def test_many_good_measurements_stay_folded(quickstart_run: RunData) -> None:
    part = build_fidelity_part(quickstart_run.fidelity * 3)
    assert part.shown == ()
    assert len(part.folded) == 30
    one_missed = build_fidelity_part(
        (*quickstart_run.fidelity * 3, quickstart_run.fidelity[0].model_copy(update={"ok": False}))
    )
    assert [row.ok for row in one_missed.shown] == [False]
    assert part.verdict.tone == "good"
    assert build_fidelity_part(()).verdict.tone == "care"


def test_rows_are_dearest_first_masked_last_and_not_without_end(
    quickstart_run: RunData, quickstart_analysis: AnalysisResult
) -> None:
    base = quickstart_analysis.findings[0]
    many: tuple[Finding, ...] = tuple(
        base.model_copy(update={"cost_s": float(n), "masked": n % 2 == 0}) for n in range(100)
    )
    rows = build_straggler_rows(quickstart_run, replace(quickstart_analysis, findings=many))
    assert len(rows) == MOST_ROWS
    assert [row.masked for row in rows] == sorted(row.masked for row in rows)
    assert rows[0].cost.startswith("99 s")


def test_what_is_not_known_is_not_shown(quickstart_run: RunData) -> None:
    assert quickstart_run.record is not None
    bare = quickstart_run.record.model_copy(
        update={
            "git": None,
            "backend": None,
            "versions": {},
            "stages": (),
            "hosts": (),
            "outcome": None,
        }
    )
    run = replace(quickstart_run, record=bare)
    names = [name for name, _ in list_facts(run)]
    assert {"Revision", "Link emulation", "Versions"}.isdisjoint(names)
    assert [table.title for table in build_setup_tables(run)] == ["Hosts (8 ranks)"]
    assert build_outcome_tiles(run, None) == ()
    assert format_hosts_line(replace(run, hosts=())) == ""


def test_equal_machines_are_told_once(quickstart_run: RunData) -> None:
    assert quickstart_run.record is not None
    hosts = tuple({"host": f"h{n}", "cpu": "EPYC", "cores": 2 if n else 4} for n in range(8))
    run = replace(quickstart_run, record=quickstart_run.record.model_copy(update={"hosts": hosts}))
    machines = build_setup_tables(run)[-1]
    assert machines.columns == ("Hosts", "cpu", "cores")
    assert sorted(machines.rows) == [("1", "EPYC", "4"), ("7", "EPYC", "2")]


@pytest.mark.long
def test_a_trace_of_another_tool_claims_no_emulation_and_no_progress(tmp_path: Path) -> None:
    run = generate_run(TraceSpec(steps=40))
    write_operations(run_to_operations(run), tmp_path / "trace.parquet")
    imported = open_run(tmp_path / "trace.parquet")
    outline = read(write_report(imported, analyze_lockstep(imported), tmp_path / "out"))
    assert {"fidelity", "progress"}.isdisjoint(str(a.get("id")) for _, a in outline.tags)
    assert {"#fidelity", "#progress"}.isdisjoint(str(a.get("href")) for _, a in outline.tags)
    assert not list((tmp_path / "out" / "figures").glob("progress.*"))
    assert "Nothing was emulated" in outline.text
    for odd in ("Time dilation", "loss", "Accuracy"):
        assert odd not in outline.text


def test_what_alone_was_recorded_of_progress_is_drawn_alone(
    quickstart_run: RunData, quickstart_analysis: AnalysisResult
) -> None:
    steps = quickstart_run.steps
    without_accuracy = replace(steps, accuracy=np.full(len(steps), np.nan))
    for columns, labels in (
        (steps, ["accuracy", "training loss"]),
        (without_accuracy, ["training loss"]),
    ):
        run = replace(quickstart_run, steps=columns)
        figure = draw_figure(progress.FIGURE, run, quickstart_analysis)
        assert [axes.get_ylabel() for axes in figure.axes] == labels
        assert progress.FIGURE in select_figure_kinds(run, quickstart_analysis)


@pytest.mark.long
def test_a_report_from_a_cold_start_says_nothing(quickstart_run: RunData, tmp_path: Path) -> None:
    """No warning of a library, no font cache being built: what a first run on a new machine would
    show."""
    folder = write_run(quickstart_run, tmp_path / "run")
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from laggard.analysis.tables.load_run import load_run\n"
        "from laggard.analysis.findings.analysis_result import analyze_lockstep\n"
        "from laggard.analysis.report import write_report\n"
        "run = load_run(Path(sys.argv[1]))\n"
        "write_report(run, analyze_lockstep(run), Path(sys.argv[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], check=True, capture_output=True, text=True
    )
    assert done.stdout == ""
    assert done.stderr == ""

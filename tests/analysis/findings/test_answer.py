"""The sentences that open a report: right grammar, right grouping, right numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.analysis.evaluate.synthetic.run_generator import (
    Injection,
    Tier,
    TraceSpec,
    generate_run,
)
from laggard.analysis.findings.analysis_result import AnalysisResult, analyze_lockstep
from laggard.analysis.findings.answer import format_answer, group_findings, select_reported_groups
from laggard.analysis.findings.answer_subjects import describe_hosts, describe_links
from laggard.analysis.tables.load_run import RankHost, RunData
from laggard.core.run_schema import FidelityCheck, Finding
from laggard.core.text.text_format import (
    capitalize_sentence,
    format_bytes,
    format_count,
    format_list,
    format_percent,
    format_ratio,
    format_seconds,
)

MAKESPAN_S = 100.0


def finding(**given: object) -> Finding:
    usual = {
        "rank": 4,
        "host": "edge.trainer.1.1",
        "link": None,
        "family": "compute",
        "kind": "deterministic",
        "first_step": 0,
        "last_step": 299,
        "slowdown": 4.1,
        "cost_s": 10.0,
        "confidence": 0.99,
        "masked": False,
    }
    return Finding.model_validate(usual | given)


def edge(number: int, **given: object) -> Finding:
    return finding(rank=3 + number, host=f"edge.trainer.1.{number}", **given)


def link(source: str, target: str, **given: object) -> Finding:
    usual = {"rank": None, "host": None, "link": (source, target), "family": "network"}
    return finding(**(usual | given))


Say = Callable[..., tuple[str, ...]]
BURST = {"kind": "dynamic", "first_step": 120, "last_step": 165, "slowdown": 3.2, "cost_s": 6.0}


@pytest.fixture
def say(quickstart_run: RunData, quickstart_analysis: AnalysisResult) -> Say:
    def said(*findings: Finding, modeled_s: float = MAKESPAN_S) -> tuple[str, ...]:
        analysis = replace(
            quickstart_analysis, findings=findings, makespan_s=MAKESPAN_S, modeled_s=modeled_s
        )
        return format_answer(quickstart_run, analysis)

    return said


CASES = [
    pytest.param(
        [edge(n, cost_s=9.5) for n in (1, 2, 3, 4)],
        "The four edge hosts compute 4.1x slower than the cloud for the whole run; they cost 38 %"
        " of the makespan.",
        id="a whole tier",
    ),
    pytest.param(
        [edge(2)],
        "edge.trainer.1.2 computes 4.1x slower than the cloud for the whole run; it costs 10 % of"
        " the makespan.",
        id="one host",
    ),
    pytest.param(
        [edge(2), edge(3)],
        "Two of the four edge hosts (edge.trainer.1.2 and edge.trainer.1.3) compute 4.1x slower"
        " than the cloud for the whole run; they cost 20 % of the makespan.",
        id="half a tier",
    ),
    pytest.param(
        [
            edge(1, slowdown=3.0),
            edge(2, slowdown=4.0),
            edge(3, slowdown=3.5),
            edge(4, slowdown=3.1),
        ],
        "The four edge hosts compute 3.0x to 4.0x slower than the cloud for the whole run; "
        "they cost 40 % of the makespan.",
        id="unequal hosts",
    ),
    pytest.param(
        [finding(rank=1, host="cloud.trainer.1.2")],
        "cloud.trainer.1.2 computes 4.1x slower than the fastest hosts for the whole run; "
        "it costs 10 % of the makespan.",
        id="slow in the fastest tier",
    ),
    pytest.param(
        [edge(n, cost_s=1.4, masked=True) for n in (1, 2, 3, 4)],
        "The four edge hosts compute 4.1x slower than the cloud for the whole run; "
        "they cost 5.6 % of the makespan together, each less than 1 %.",
        id="each masked, dear together",
    ),
    pytest.param(
        [finding(family="storage", slowdown=40.0)],
        "edge.trainer.1.1 fetches samples 40x slower than the fastest hosts for the whole run; "
        "it costs 10 % of the makespan.",
        id="storage",
    ),
    pytest.param(
        [link("edge.trainer.1.4", "cloud.trainer.1.1")],
        "The links between edge and cloud (worst: edge.trainer.1.4 to cloud.trainer.1.1) are 4.1x"
        " slower than the fastest links between tiers for the whole run; they cost 10 % of the"
        " makespan.",
        id="slow links",
    ),
    pytest.param(
        [link("edge.trainer.1.4", "cloud.trainer.1.1", **BURST)],
        "From {start} s to {end} s (steps 120-165) the links between edge and cloud (worst:"
        " edge.trainer.1.4 to cloud.trainer.1.1) were 3.2x slower; that cost 6 % of the makespan.",
        id="links for a while",
    ),
    pytest.param(
        [finding(**(BURST | {"rank": 3, "host": "fog.trainer.1.2"}))],
        "From {start} s to {end} s (steps 120-165) fog.trainer.1.2 computed 3.2x slower; that cost"
        " 6 % of the makespan.",
        id="one host for a while",
    ),
    pytest.param(
        [finding(**(BURST | {"rank": None, "host": None, "family": "network"}))],
        "From {start} s to {end} s (steps 120-165) communication (link unknown) was"
        " 3.2x slower; that cost 6 % of the makespan.",
        id="no link named",
    ),
]


@pytest.mark.parametrize(("findings", "expected"), CASES)
def test_a_cause_is_told_in_one_sentence(
    say: Say, findings: list[Finding], expected: str, quickstart_run: RunData
) -> None:
    steps = quickstart_run.steps
    start = steps.start_ns[steps.step == 120].min() / 1e9
    end = steps.end_ns[steps.step == 165].max() / 1e9
    assert say(*findings) == (expected.format(start=f"{start:.0f}", end=f"{end:.0f}"),)


def test_no_straggler_says_so(say: Say) -> None:
    assert say() == (
        ("No straggler: no slow interval cost 1 % or more of the makespan (100 s, 300 steps)."),
    )


@pytest.mark.parametrize(
    ("masked", "tail"),
    [
        (1, "One slow interval cost less than 1 %; the table lists it as masked."),
        (2, "Two slow intervals cost less than 1 % each; the table lists them as masked."),
    ],
)
def test_masked_intervals_are_counted(say: Say, masked: int, tail: str) -> None:
    small = [edge(n, masked=True, cost_s=0.5) for n in range(1, masked + 1)]
    said = say(*small)
    assert said[0].startswith("No straggler: ")
    assert said[1:] == (tail,)


@pytest.mark.parametrize(
    ("modeled_s", "beginning"),
    [
        (97.0, "3.0 % of the makespan is unexplained, which is more than 2 %, so"),
        (104.0, "The modeled makespan is 4 % longer than the measured one"),
    ],
)
def test_a_remainder_is_told(say: Say, modeled_s: float, beginning: str) -> None:
    last = say(edge(1), modeled_s=modeled_s)[-1]
    assert last.startswith(beginning)
    assert last.endswith("so do not rely on the costs.")
    assert len(say(edge(1), modeled_s=98.5)) == 1


def test_causes_are_told_dearest_first_and_not_without_end(say: Say) -> None:
    many = [
        edge(
            1,
            kind="dynamic",
            first_step=20 * n,
            last_step=20 * n + 10,
            cost_s=2.0 + n,
            slowdown=3.0,
        )
        for n in range(9)
    ]
    said = say(*many)
    assert len(said) == 7
    assert "10 % of the makespan" in said[0]
    assert said[-1] == "Three more causes cost 9 % together; the table lists all of them."


def test_different_times_families_and_sizes_are_different_causes(
    quickstart_analysis: AnalysisResult,
) -> None:
    apart = [
        edge(1),
        edge(2, slowdown=9.0),
        edge(3, family="storage"),
        edge(1, kind="dynamic", first_step=0, last_step=50),
        edge(2, kind="dynamic", first_step=40, last_step=90),
        finding(rank=2, host="fog.trainer.1.1"),
    ]
    assert len(group_findings(apart, quickstart_analysis)) == len(apart)


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 250), st.integers(1, 49), st.floats(1.1, 9)),
        max_size=12,
    )
)
def test_grouping_loses_nothing(rows: list[tuple[int, int, int, float]]) -> None:
    run = generate_run(TraceSpec(steps=3))
    some = tuple(
        edge(
            n,
            kind="dynamic",
            first_step=first,
            last_step=first + length,
            slowdown=slowdown,
            cost_s=slowdown,
        )
        for n, first, length, slowdown in rows
    )
    analysis = replace(analyze_lockstep(run), findings=some, makespan_s=100.0)
    told, silent = select_reported_groups(analysis)
    assert sorted(map(repr, some)) == sorted(
        repr(f) for cause in (*told, *silent) for f in cause.findings
    )


@pytest.mark.parametrize(
    ("status", "beginning"),
    [
        ("failed", "This run failed"),
        ("interrupted", "This run did not end"),
        ("running", "This run did not end"),
        ("done", "The four edge hosts"),
    ],
)
def test_how_a_run_ended_comes_first(
    quickstart_run: RunData, quickstart_analysis: AnalysisResult, status: str, beginning: str
) -> None:
    assert quickstart_run.record is not None
    run = replace(
        quickstart_run, record=quickstart_run.record.model_copy(update={"status": status})
    )
    assert format_answer(run, quickstart_analysis)[0].startswith(beginning)


def test_missed_fidelity_is_told(
    quickstart_run: RunData, quickstart_analysis: AnalysisResult
) -> None:
    missed = FidelityCheck(
        kind="cpu", src="h", dst=None, requested=4, measured=6, unit="x", tolerance=0.2, ok=False
    )
    run = replace(quickstart_run, fidelity=(*quickstart_run.fidelity, missed))
    said = format_answer(run, quickstart_analysis)[0]
    assert (
        said
        == "1 of 11 fidelity checks failed, so the emulation was out of tolerance: do not rely on the"
        " numbers."
    )


def test_a_run_without_record_or_analysis_still_has_an_answer(quickstart_run: RunData) -> None:
    assert "interrupted" in format_answer(replace(quickstart_run, record=None), None)[0]
    assert "No step was finished" in format_answer(quickstart_run, None)[0]


def test_what_was_put_into_a_trace_is_what_the_answer_says() -> None:
    spec = TraceSpec(
        tiers=(Tier("cloud", 2), Tier("fog", 2), Tier("edge", 4, 3.0)),
        steps=400,
        injections=(Injection("compute", 5.0, 100, 180, rank=2),),
        seed=11,
    )
    run = generate_run(spec)
    said = format_answer(run, analyze_lockstep(run))
    assert said[0].startswith("The four edge hosts compute 3.")
    assert any("fog.trainer.1.1 computed" in s and s.startswith("From ") for s in said)


HOSTS = tuple(
    RankHost(rank, name, "", name.split(".")[0], "", 1.0, 0, 0)
    for rank, name in enumerate(
        ["cloud.a.1.1", "fog.a.1.1", "edge.a.1.1", "edge.a.1.2", "edge.a.1.2"]
    )
)


@pytest.mark.parametrize(
    ("names", "text", "single"),
    [
        (["cloud.a.1.1"], "cloud.a.1.1", True),
        (["edge.a.1.2", "edge.a.1.1"], "the two edge hosts", False),
        (["edge.a.1.2", "edge.a.1.2"], "edge.a.1.2", True),
        (["elsewhere"], "elsewhere", True),
    ],
)
def test_hosts_are_named(names: list[str], text: str, *, single: bool) -> None:
    subject = describe_hosts(names, HOSTS)
    assert (subject.text, subject.single) == (text, single)


@pytest.mark.parametrize(
    ("links", "text"),
    [
        ([("cloud.a.1.1", "fog.a.1.1")], "the link from cloud.a.1.1 to fog.a.1.1"),
        (
            [("fog.a.1.1", "edge.a.1.2")],
            "the links between fog and edge (worst: fog.a.1.1 to edge.a.1.2)",
        ),
        (
            [("edge.a.1.1", "edge.a.1.2")],
            "the links among the edge hosts (worst: edge.a.1.1 to edge.a.1.2)",
        ),
        ([("10.0.0.1", "10.0.0.2")], "the link from 10.0.0.1 to 10.0.0.2"),
        (
            [("fog.a.1.1", "cloud.a.1.1"), ("cloud.a.1.1", "fog.a.1.1")],
            "the two links between cloud.a.1.1 and fog.a.1.1",
        ),
    ],
)
def test_links_are_named(links: list[tuple[str, str]], text: str) -> None:
    assert describe_links(links, HOSTS).text == text


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (format_percent(0.38), "38 %"),
        (format_percent(0.064), "6.4 %"),
        (format_percent(0.06), "6 %"),
        (format_percent(0.0996), "10 %"),
        (format_percent(0.00998), "under 1 %"),
        (format_percent(0.01), "1 %"),
        (format_percent(0.0094), "0.9 %"),
        (format_percent(0.0004), "under 0.1 %"),
        (format_percent(0), "0 %"),
        (format_ratio(4.08), "4.1x"),
        (format_ratio(1.13), "1.13x"),
        (format_ratio(12.3), "12x"),
        (format_seconds(41.2), "41 s"),
        (format_seconds(1.25), "1.2 s"),
        (format_seconds(0.0123), "12 ms"),
        (format_seconds(0), "0 s"),
        (format_seconds(725), "12 min 5 s"),
        (format_seconds(600), "10 min"),
        (format_bytes(999), "999 B"),
        (format_bytes(999_600), "1 MB"),
        (format_bytes(1_240_000_000), "1.24 GB"),
        (format_bytes(5e15), "5000 TB"),
        (format_count(1, "step"), "one step"),
        (format_count(14, "step"), "14 steps"),
        (format_list(["a"]), "a"),
        (format_list(["a", "b", "c"]), "a, b and c"),
        (capitalize_sentence("the edge"), "The edge"),
        (capitalize_sentence("edge.a.1.1 computes"), "edge.a.1.1 computes"),
        (capitalize_sentence(""), ""),
    ],
)
def test_numbers_are_said_as_a_reader_would(said: str, expected: str) -> None:
    assert said == expected

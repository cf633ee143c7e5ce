"""Rounds of a federated training, as they are reported."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.findings.federated_result import (
    build_federated_document,
    find_federated_result,
    format_rounds,
)
from laggard.analysis.report.clients import build_federated_tables
from laggard.analysis.report.figures.drawing import draw_figure
from laggard.analysis.report.figures.registry import select_figure_kinds
from laggard.analysis.report.figures.rounds import FIGURE, sort_clients
from laggard.analysis.tables.load_run import RunData, load_run
from laggard.analysis.tables.write_run import write_run
from laggard.core.errors import RunFolderError
from laggard.core.run_schema import (
    FEDERATED_FILE,
    ClientAccuracies,
    FederatedTraining,
    RoundAnswer,
    RoundResult,
)
from tests.analysis.report.test_figures import (
    WIDTHS,
    assert_all_is_inside,
    assert_labels_do_not_overlap,
    assert_text_is_legible,
)

LATE, FAILED = None, -1.0


def make_round(number: int, ended_s: float, **took_s: float | None) -> RoundResult:
    """A round with the seconds of each client, given as r0, r1, and so on."""

    def make(name: str, seconds: float | None) -> RoundAnswer:
        rank, reason = int(name[1:]), "drawn"
        if seconds is None:
            return RoundAnswer(rank=rank, reason=reason, outcome="unanswered")
        if seconds < 0:
            return RoundAnswer(rank=rank, reason=reason, outcome="failed")
        return RoundAnswer(rank=rank, reason=reason, outcome="accepted", took_s=seconds)

    return RoundResult(
        round=number, ended_s=ended_s, answers=tuple(make(*each) for each in took_s.items())
    )


ROUNDS = (
    make_round(0, 2.0, r0=1.0, r1=2.0, r4=LATE),
    make_round(1, 2.5, r5=FAILED),
    make_round(1, 6.0, r0=1.2, r6=3.5),
    make_round(2, 8.0, r0=0.8, r1=2.0),
)
EVALUATIONS = (
    ClientAccuracies(step=0, mean=0.5, worst=0.2, worst_rank=7),
    ClientAccuracies(step=2, mean=0.9, worst=0.75, worst_rank=6),
)


def federate(
    run: RunData,
    rounds: Sequence[RoundResult] = ROUNDS,
    evaluations: Sequence[ClientAccuracies] = EVALUATIONS,
) -> RunData:
    federated = FederatedTraining(rounds=tuple(rounds), evaluations=tuple(evaluations))
    return dataclasses.replace(run, federated=federated)


def test_who_took_part_is_counted(quickstart_run: RunData) -> None:
    result = find_federated_result(federate(quickstart_run))
    assert result is not None
    assert result.rounds == 3, "the one without an answer changed nothing"
    assert [each.selected for each in result.clients] == [3, 2, 0, 0, 1, 1, 1, 0]
    assert [each.accepted for each in result.clients] == [3, 2, 0, 0, 0, 0, 1, 0]
    assert [each.last for each in result.clients] == [0, 2, 0, 0, 0, 0, 1, 0]
    assert [each.usual_s for each in result.clients] == [1.0, 2.0, *[None] * 4, 3.5, None]
    # The second client was slower than the first by a second and by 1.2 s.
    prolonged_s = [each.prolonged_s for each in result.clients]
    assert prolonged_s == pytest.approx([0, 1.0 + 1.2, 0, 0, 0, 0, 3.5 - 1.2, 0])
    assert result.jain_index == pytest.approx(8**2 / (8 * (9 + 4 + 1 + 1 + 1)))
    assert result.average_by_tier() == {"cloud": 2.5, "fog": 0.0, "edge": 0.75}


def test_nobody_ends_a_round_that_its_answers_do_not_begin_with(quickstart_run: RunData) -> None:
    """As with a buffer, where clients begin at any time."""
    buffered = make_round(0, 2.0, r0=2.0), make_round(1, 3.0, r1=2.5, r2=0.5)
    result = find_federated_result(federate(quickstart_run, buffered))
    assert result is not None
    assert [each.last for each in result.clients] == [1, 0, 0, 0, 0, 0, 0, 0]
    assert sum(each.prolonged_s for each in result.clients) == 0


def test_it_is_told_to_people_and_programs(quickstart_run: RunData) -> None:
    run = federate(quickstart_run)
    part, slow, lost, accuracy = format_rounds(find_federated_result(run))
    assert part == (
        "In three rounds, each client was selected between 0 and 3 times, on average 2.5 in cloud, 0 in"
        " fog and 0.75 in edge (Jain's index 0.50; 1 means all equally often)."
    )
    worst = run.hosts[6].host
    assert slow == (
        f"{worst} (rank 6) was the last to answer in one round, which took 2.3 s longer for that (29"
        " % of the makespan)."
    )
    assert lost.startswith("1 of 8 clients had not answered when their round ended and 1 of 8")
    assert accuracy == (
        "At the end, the accuracy on each client's own classes was 90 % on average, and lowest for"
        f" {worst} (rank 6): 75 %."
    )
    document = build_federated_document(find_federated_result(run))
    assert isinstance(document, dict)
    assert (document["rounds"], document["worst_accuracy"], document["worst_rank"]) == (3, 0.75, 6)
    json.dumps(document, allow_nan=False)
    clients, rounds = build_federated_tables(run)
    assert clients.title == "Clients (8)"
    assert clients.rows[0][:3] == ("6", worst, "edge"), "it prolonged rounds most"
    assert clients.rows[1][0] == "1"
    assert [row[0] for row in rounds.rows] == ["1", "2", "2", "3"]
    assert rounds.rows[1][3] == "-"
    assert rounds.rows[2][2:4] == ("3.5 s", worst)


def test_energy_is_summed_over_all_that_were_selected(quickstart_run: RunData) -> None:
    """Clients whose answers came too late have computed too."""
    of_rank = {0: 1000.0, 4: 250.0, 6: 2.0}
    rounds = [
        each.model_copy(
            update={
                "answers": tuple(
                    answer.model_copy(update={"energy_j": of_rank.get(answer.rank)})
                    for answer in each.answers
                )
            }
        )
        for each in ROUNDS
    ]
    result = find_federated_result(federate(quickstart_run, rounds))
    assert result is not None
    known = [each.energy_j for each in result.clients]
    assert known == [3000.0, None, None, None, 250.0, None, 2.0, None]
    sentences = format_rounds(result)
    assert "The clients' computing took 3,250 J: 3,000 in cloud and 252 in edge." in sentences
    document = build_federated_document(result)
    assert isinstance(document, dict)
    assert document["energy_j"] == {"cloud": 3000.0, "edge": 252.0}


def test_another_training_says_nothing_of_rounds(quickstart_run: RunData) -> None:
    for run in (quickstart_run, federate(quickstart_run, ())):
        assert find_federated_result(run) is None
        assert build_federated_document(find_federated_result(run)) is None
        assert format_rounds(find_federated_result(run)) == ()
        assert build_federated_tables(run) == ()


def test_a_folder_keeps_it_and_refuses_ranks_that_are_none(
    quickstart_run: RunData, tmp_path: Path
) -> None:
    run = federate(quickstart_run)
    folder = write_run(run, tmp_path / "run")
    assert load_run(folder).federated == run.federated
    text = (folder / FEDERATED_FILE).read_text()
    (folder / FEDERATED_FILE).write_text(text.replace('"worst_rank": 7', '"worst_rank": 8'))
    with pytest.raises(RunFolderError, match="rank 8 took part in rounds"):
        load_run(folder)
    (folder / FEDERATED_FILE).write_text(text.replace('"accepted"', '"bribed"', 1))
    with pytest.raises(RunFolderError, match="not the valid rounds"):
        load_run(folder)


@pytest.mark.parametrize("width_in", WIDTHS)
@pytest.mark.parametrize("rounds", [1, 4, 400])
def test_the_figure_is_legible(
    rounds: int, width_in: float, quickstart_run: RunData, quickstart_analysis: AnalysisResult
) -> None:
    assert FIGURE not in select_figure_kinds(quickstart_run, quickstart_analysis)
    many = [
        each.model_copy(update={"ended_s": each.ended_s + 8.0 * (number // 4)})
        for number, each in enumerate(ROUNDS * 100)
    ]
    run = federate(quickstart_run, many[:rounds])
    assert FIGURE in select_figure_kinds(run, quickstart_analysis)
    figure = draw_figure(FIGURE, run, quickstart_analysis, width_in)
    assert_all_is_inside(figure)
    assert_text_is_legible(figure)
    assert_labels_do_not_overlap(figure)
    lines = sum(len(each.get_segments()) for each in figure.axes[0].collections)  # type: ignore[attr-defined]
    assert lines == sum(len(each.answers) for each in many[:rounds])
    assert FIGURE.caption(run, quickstart_analysis).endswith(".")


def test_the_fastest_client_is_on_top(quickstart_run: RunData) -> None:
    result = find_federated_result(federate(quickstart_run))
    assert result is not None
    assert [*sort_clients(result)][:3] == [0, 1, 6]

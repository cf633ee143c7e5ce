"""What is told of ranks of their own pace beside the findings: who took how many steps, who waited for whom, who came and went."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laggard.analysis.findings import Analysis
from laggard.analysis.load import Run
from laggard.run_schema import Turnover


def _turnover_sentence(run: Run, churn: Sequence[Turnover], rank: int) -> str:
    """When a rank left and joined."""
    told = " and ".join(f"{each.kind} after {each.effective_s:.1f} s" for each in churn if each.rank == rank)
    return f"{run.hosts[rank].host} (rank {rank}) {told}."


def own_pace_sentences(run: Run, analysis: Analysis) -> tuple[str, ...]:
    """Who was slow and who was waited for, in plain sentences."""
    from laggard.analysis.wording import percent_text, ratio_text

    name = run.record.strategy.name if run.record is not None else "this strategy"
    lost = run.record.lost_ranks if run.record is not None else ()
    churn = run.record.churn if run.record is not None else ()
    pace = "workers were lost" if lost else "workers left or joined" if churn else "every worker goes at its own pace"
    imported = run.record is not None and run.record.origin is not None
    told = [f"Under {name} {pace}, so what slow ones cost is not computed."] if not analysis.costed else []
    if imported:
        told = ["This trace is replayed in part only, as told below, so what slow workers cost is not computed."]
    if analysis.stragglers:
        told.append(f"Under {name} {pace}: a cost is how much sooner as much would have been learnt.")
    told += [_turnover_sentence(run, churn, rank) for rank in dict.fromkeys(each.rank for each in churn)]
    told += [f"{run.hosts[rank].host} (rank {rank}) was lost, and the others went on without it." for rank in lost]
    usual = np.median(analysis.compute_s, axis=0)
    usual = np.where(usual > 0, usual, np.median(usual[usual > 0]) if usual.any() else 0.0)
    fast, slow = int(np.argmin(usual)), int(np.argmax(usual))
    taken = np.bincount(run.steps.rank, minlength=run.world_size)
    if usual[fast] > 0 and usual[slow] >= 1.1 * usual[fast]:
        slower = f"{run.hosts[slow].host} computes {ratio_text(float(usual[slow] / usual[fast]))} slower than {run.hosts[fast].host}"
        counts = f"; it took {taken[slow]} steps, and {run.hosts[fast].host} {taken[fast]}"
        told.append(f"{slower}{'' if imported else counts}.")
    dropped = int(run.steps.dropped.sum()) / max(int(run.steps.samples.sum() + run.steps.dropped.sum()), 1)
    if dropped >= 0.01:
        told.append(f"{percent_text(dropped)} of the samples were computed in vain.")
    most = int(np.argmax(analysis.time_split.wait_s))
    share_s = float(analysis.time_split.wait_s[most]) / max(analysis.makespan_s, 1e-9)
    whom = run.steps.waited_for[(run.steps.rank == most) & (run.steps.waited_for >= 0)]
    if share_s >= 0.02 and len(whom):
        often = int(np.bincount(whom).argmax())
        told.append(
            f"{run.hosts[most].host} waits {percent_text(share_s)} of the time, mostly for {run.hosts[often].host}."
        )
    return tuple(told)

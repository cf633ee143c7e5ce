"""Rows of a results table that are exported and reproduced."""

from __future__ import annotations

from laggard.crate.results_rows import parse_rows

TABLE = b"""cell,current,scenario,variant,seed,attempt,status,run,folder,f1,stage
a,true,small,,3,1,unfaithful,r1,f1,,x
a,true,small,,3,2,done,r2,f2,,x
b,true,small,wide,4,1,failed,r3,f3,,y
c,false,small,,3,1,done,r4,f4,,x
"""


def test_only_done_cells_of_the_present_campaign_count() -> None:
    (cell,) = parse_rows(TABLE, "results.csv")
    assert (cell.cell, cell.run) == ("a", "r2")
    assert cell.label == "small, seed 3, stage=x"

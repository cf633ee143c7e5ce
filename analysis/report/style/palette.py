"""Colors with one meaning each, after Okabe and Ito.

Color-blind readers can distinguish them, and they differ in lightness in print.
"""

from __future__ import annotations

from dataclasses import dataclass

from laggard.core.span_schema import Phase


@dataclass(frozen=True)
class Paint:
    """Appearance of one kind of time."""

    label: str
    color: str
    hatch: str = ""


COMPUTE = Paint("compute", "#0072B2")
TRANSFER = Paint("transfer", "#D55E00")
INTERCONNECT = Paint("interconnect", "#F4A582")
NETWORK = Paint("network", "#D55E00")
IDLE = Paint("idle", "#FFFFFF", "....")
WAIT = Paint("wait", "#E3E7EC", "////")
FETCH = Paint("fetch", "#009E73")
PREP = Paint("prep", "#F0E442")
OTHER = Paint("other", "#8A929E")
EVALUATE = Paint("evaluation (outside the clock)", "#FFFFFF", "\\\\\\\\")
BACKGROUND_TRANSFER = Paint("background transfer", "#D55E00")

PHASES: dict[Phase, Paint] = {
    Phase.FETCH: FETCH,
    Phase.REHEARSE: Paint("rehearse", "#8FD3BE"),
    Phase.PREP: PREP,
    Phase.H2D: Paint("h2d", "#E69F00"),
    Phase.FORWARD: Paint("forward", "#56B4E9"),
    Phase.BACKWARD: Paint("backward", "#0072B2"),
    Phase.COMM: TRANSFER,
    Phase.OPTIMIZER: Paint("optimizer", "#CC79A7"),
    Phase.CHECKPOINT: Paint("checkpoint", "#3C4450"),
    Phase.EVALUATE: EVALUATE,
    Phase.OTHER: OTHER,
}

TIERS = ("#0072B2", "#E69F00", "#CC3311", "#009E73", "#CC79A7", "#56B4E9", "#5b6472")
LINES: tuple[tuple[int, tuple[float, ...]], ...] = (
    (0, ()),
    (0, (5, 1.5)),
    (0, (1.5, 1)),
    (0, (6, 1.5, 1.5, 1.5)),
)
EDGE = "#3C4450"
HATCH = "#AEB6C1"

"""Clock exchanges of any kind, far from zero and near it."""

from __future__ import annotations

from hypothesis import strategies as st

from laggard.core.clocks.clock_fit import ClockExchange

SECOND = 1_000_000_000
FAR = 1 << 60
stamps = st.integers(FAR, FAR + (1 << 45))
any_exchange = st.builds(
    lambda sent, took, received, paused: ClockExchange(
        sent, received, received + paused, sent + took
    ),
    st.one_of(stamps, st.integers(FAR, FAR + SECOND)),
    st.integers(0, SECOND),
    st.one_of(stamps, st.integers(FAR, FAR + SECOND)),
    st.integers(0, SECOND),
)

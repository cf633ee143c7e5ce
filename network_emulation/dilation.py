"""The smallest time dilation under which a machine can give every host the speed it was promised.

Shares scale with 1 / D. A host that is held back finds its caches cold when it goes on, and takes
more CPU time for the same work: a share of s loads its core with s * (2 - s), which is what small
models were measured to take at most (`benchmarks/dilation.md`). So the smallest D for a given
placement solves a quadratic equation for its heaviest core; the placement itself (hosts never
migrate) is bin packing, solved by the two classic heuristics and the better taken: longest
processing time first (Graham, SIAM J. Appl. Math. 1969) and MULTIFIT (Coffman, Garey, Johnson, SIAM
J. Comput. 1978). Both stay within 4/3 and 13/11 of the optimum; on mixes of a few device classes
they reach it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

CORE_CAPACITY = 0.95
"""Load that several hosts may put on one core; the rest is for interrupts and for what holds the
shares."""

_BISECTIONS = 40
_EPSILON = 1e-9

Placement = tuple[tuple[str, ...], ...]


def auto_dilation(shares: Mapping[str, float], cores: int, reserve: float) -> float:
    """Smallest D >= 1 such that the loads of shares / D fit on the cores, each host on one core.

    Args:
        shares: cores' worth of speed that every host is to have, above 0 and at most 1.
        cores: cores of the machine.
        reserve: cores to keep free for the link emulator, the controller and the measurements.

    Returns:
        D; 1 where everything fits.

    Raises:
        ValueError: the reserve leaves nothing, or a share is not above 0 and at most 1.
    """
    return best_placement(shares, cores, reserve)[1]


def best_placement(
    shares: Mapping[str, float], cores: int, reserve: float
) -> tuple[Placement, float]:
    """Hosts of every core, and the dilation that this placement needs (see `auto_dilation`)."""
    _require_capacity(shares, cores, reserve)
    least = max(1.0, _solve_fitting_dilation(shares.values(), cores - reserve))
    by_size = sorted(shares, key=lambda host: -shares[host])
    candidates = [_longest_first(by_size, shares, cores)]
    if compute_needed_dilation(candidates[0], shares) > least:
        candidates.extend(
            _place_multifit(by_size, shares, cores, compute_needed_dilation(candidates[0], shares))
        )
    best = min(candidates, key=lambda placement: compute_needed_dilation(placement, shares))
    return best, max(least, compute_needed_dilation(best, shares))


def compute_needed_dilation(placement: Placement, shares: Mapping[str, float]) -> float:
    """Dilation that the heaviest core of a placement needs; a host alone may have the whole
    core.
    """
    alone = [shares[core[0]] for core in placement if len(core) == 1]
    together = [
        _solve_fitting_dilation([shares[host] for host in core], CORE_CAPACITY)
        for core in placement
        if len(core) > 1
    ]
    return max((*alone, *together), default=0.0)


def compute_load(share: float) -> float:
    """CPU time a second that a host needs to compute at a share of a core's full speed."""
    return share * (2 - share) if share < 1 else share


def _solve_fitting_dilation(shares: Iterable[float], capacity: float) -> float:
    """The D at which the loads of shares / D add up to a capacity; 0 for no shares.

    2 S / D - Q / D^2 = C with the sum S of the shares and Q of their squares; where the greatest
    sum of loads, at D = Q / S, is less than the capacity, any D will do.
    """
    known = tuple(shares)
    total, squares = sum(known), sum(share * share for share in known)
    room = total * total - capacity * squares
    return (total + math.sqrt(room)) / capacity if room > 0 else 0.0


def _require_capacity(shares: Mapping[str, float], cores: int, reserve: float) -> None:
    if not 0 <= reserve < cores:
        raise ValueError(
            f"a reserve of {reserve:g} of {cores} cores leaves nothing to the hosts; keep fewer"
            " back"
        )
    wrong = [host for host, share in shares.items() if not 0 < share <= 1]
    if wrong:
        raise ValueError(
            f"{wrong[0]} has a share of {shares[wrong[0]]:g}; a share is above 0 and at most 1 core"
        )


def _longest_first(by_size: Sequence[str], shares: Mapping[str, float], cores: int) -> Placement:
    placed: list[list[str]] = [[] for _ in range(cores)]
    loads = [0.0] * cores
    for host in by_size:
        core = loads.index(min(loads))
        placed[core].append(host)
        loads[core] += shares[host]
    return tuple(map(tuple, placed))


def _place_multifit(
    by_size: Sequence[str], shares: Mapping[str, float], cores: int, enough: float
) -> list[Placement]:
    low, high, found = 0.0, enough, list[Placement]()
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        placement = _first_fit(by_size, shares, cores, middle)
        if placement is None:
            low = middle
        else:
            high = middle
            found = [placement]
    return found


def _first_fit(
    by_size: Sequence[str], shares: Mapping[str, float], cores: int, dilation: float
) -> Placement | None:
    placed: list[list[str]] = [[] for _ in range(cores)]
    loads = [0.0] * cores
    for host in by_size:
        share = shares[host] / dilation
        fitting = (
            c
            for c in range(cores)
            if loads[c] + compute_load(share) <= (CORE_CAPACITY if placed[c] else 1.0) + _EPSILON
        )
        core = next(fitting, None)
        if core is None:
            return None
        placed[core].append(host)
        loads[core] += compute_load(share)
    return tuple(map(tuple, placed))

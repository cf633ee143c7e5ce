"""Time dilation: the smallest factor under which a machine gives every host its requested speed.

Shares scale with 1 / D. A held-back host finds cold caches when it resumes, and needs more CPU
time for the same work. As a speed of work, a share of s loads its core with s * (2 - s); that is
the largest load measured with small models (`benchmarks/dilation.md`). As CPU time, it loads the
core with s.

So the smallest D for a given placement solves a quadratic equation for its heaviest core, or a
linear one for CPU time. The placement itself (hosts never migrate) is bin packing. Two classic
heuristics solve it, and the better result is taken: longest processing time first (Graham, SIAM J.
Appl. Math. 1969) and MULTIFIT (Coffman, Garey, Johnson, SIAM J. Comput. 1978). Both stay within
4/3 and 13/11 of the optimum; on mixes of a few device classes they reach it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence

CORE_CAPACITY = 0.95
"""Load that several hosts may put on one core; the rest is for interrupts and for the limiters."""

_BISECTIONS = 40
"""Steps of MULTIFIT's bisection: the dilation is then exact to 2^-40 of its first upper bound."""
_EPSILON = 1e-9

Placement = tuple[tuple[str, ...], ...]


class ShareKind(enum.Enum):
    """Quantity that a share of a core limits: speed of work, or CPU time.

    Attributes:
        SPEED: work relative to a whole core, as for workers of a training, which count theirs.
        TIME: CPU time, as for other programs.
    """

    SPEED = enum.auto()
    TIME = enum.auto()

    def compute_load(self, share: float) -> float:
        """Return the CPU time per second that a host with a share needs at most."""
        return compute_load(share) if self is ShareKind.SPEED else share

    def solve_dilation(self, shares: Iterable[float], capacity: float) -> float:
        """Return the D at which the loads of shares / D add up to a capacity; 0 for no shares."""
        if self is ShareKind.SPEED:
            return _solve_fitting_dilation(shares, capacity)
        return sum(shares) / capacity


def auto_dilation(
    shares: Mapping[str, float], cores: int, reserve: float, kind: ShareKind = ShareKind.SPEED
) -> float:
    """Return the smallest D >= 1 under which all hosts fit on the cores, each on one core.

    Args:
        shares: share of every host in cores, above 0 and at most 1.
        cores: number of cores of the machine.
        reserve: cores to keep free for the link emulator, the controller and the measurements.
        kind: what the shares count.

    Returns:
        D; 1 if everything fits.

    Raises:
        ValueError: if the reserve leaves no core, or a share is not above 0 and at most 1.
    """
    return best_placement(shares, cores, reserve, kind)[1]


def best_placement(
    shares: Mapping[str, float], cores: int, reserve: float, kind: ShareKind = ShareKind.SPEED
) -> tuple[Placement, float]:
    """Return the hosts of every core, and the dilation of this placement (see `auto_dilation`)."""
    _require_capacity(shares, cores, reserve)
    least = max(1.0, kind.solve_dilation(shares.values(), cores - reserve))
    # Both heuristics place the largest hosts first. MULTIFIT runs only if the first is not
    # optimal.
    by_size = sorted(shares, key=lambda host: -shares[host])
    candidates = [_longest_first(by_size, shares, cores)]
    enough = compute_needed_dilation(candidates[0], shares, kind)
    if enough > least:
        candidates.extend(_place_multifit(by_size, shares, cores, enough, kind))
    best = min(candidates, key=lambda placement: compute_needed_dilation(placement, shares, kind))
    return best, max(least, compute_needed_dilation(best, shares, kind))


def compute_needed_dilation(
    placement: Placement, shares: Mapping[str, float], kind: ShareKind = ShareKind.SPEED
) -> float:
    """Return the dilation that the heaviest core of a placement needs.

    A host alone on a core may use the whole core.
    """
    alone = [shares[core[0]] for core in placement if len(core) == 1]
    together = [
        kind.solve_dilation([shares[host] for host in core], CORE_CAPACITY)
        for core in placement
        if len(core) > 1
    ]
    return max((*alone, *together), default=0.0)


def compute_load(share: float) -> float:
    """Return the CPU time per second that a host needs to compute at a share of full speed."""
    return share * (2 - share) if share < 1 else share


def _solve_fitting_dilation(shares: Iterable[float], capacity: float) -> float:
    """Return the D at which the loads of shares / D add up to a capacity; 0 for no shares.

    The equation is 2 S / D - Q / D^2 = C, where S is the sum of the shares and Q the sum of their
    squares. The greatest sum of loads is at D = Q / S. If it is below the capacity, any D will do.
    """
    known = tuple(shares)
    total, squares = sum(known), sum(share * share for share in known)
    room = total * total - capacity * squares
    return (total + math.sqrt(room)) / capacity if room > 0 else 0.0


def _require_capacity(shares: Mapping[str, float], cores: int, reserve: float) -> None:
    if not 0 <= reserve < cores:
        raise ValueError(
            f"a reserve of {reserve:g} of {cores} cores is out of range; it must be at least 0 and"
            " leave cores for the hosts"
        )
    wrong = [host for host, share in shares.items() if not 0 < share <= 1]
    if wrong:
        raise ValueError(
            f"{wrong[0]}: a CPU share of {shares[wrong[0]]:g} cores is out of range; it must be"
            " greater than 0 and at most 1"
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
    by_size: Sequence[str],
    shares: Mapping[str, float],
    cores: int,
    enough: float,
    kind: ShareKind,
) -> list[Placement]:
    # The dilation of the first heuristic is an upper bound: its placement fits.
    low, high, found = 0.0, enough, list[Placement]()
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        placement = _first_fit(by_size, shares, cores, middle, kind)
        if placement is None:
            low = middle
        else:
            high = middle
            found = [placement]
    return found


def _first_fit(
    by_size: Sequence[str],
    shares: Mapping[str, float],
    cores: int,
    dilation: float,
    kind: ShareKind,
) -> Placement | None:
    placed: list[list[str]] = [[] for _ in range(cores)]
    loads = [0.0] * cores
    for host in by_size:
        load = kind.compute_load(shares[host] / dilation)
        fitting = (
            c
            for c in range(cores)
            if loads[c] + load <= (CORE_CAPACITY if placed[c] else 1.0) + _EPSILON
        )
        core = next(fitting, None)
        if core is None:
            return None
        placed[core].append(host)
        loads[core] += load
    return tuple(map(tuple, placed))

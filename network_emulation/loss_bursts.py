"""Losses in bursts: the simple Gilbert model, which is also netem's `loss gemodel p r`.

A link is in a good or a bad state; every packet in the bad state is lost. After each packet a good
link turns bad with probability p, and a bad one good with probability r (Gilbert, Bell Syst. Tech.
J. 39, 1960; Salsano, Ludovici, Ordine and Giustiniano, 2009, for netem). So losses come in runs of
geometric length, 1/r packets on average, and p / (p + r) of all packets are lost. A link whose
loss or burst changes begins in the good state.

Independent losses also come in runs, of 1 / (1 - loss) packets on average. A large loss cannot
come in short runs: every run of losses is followed by at least one packet that arrives. So a burst
has at least loss / (1 - loss) packets.
"""

from __future__ import annotations


def least_burst_packets(loss: float) -> float:
    """Return the shortest mean burst for a loss fraction (0 to below 1); p is 1 there."""
    return loss / (1 - loss)


def compute_gilbert_probabilities(loss: float, burst_packets: float) -> tuple[float, float] | None:
    """Return the probabilities p (a burst begins) and r (a burst ends) after a packet.

    Args:
        loss: fraction of packets lost, 0 to 1.
        burst_packets: mean number of consecutive lost packets; raised to `least_burst_packets` if
            it is less. A value of at most 1 means independent losses.

    Returns:
        p and r; None if losses are independent, or if the link loses nothing or everything.
    """
    if burst_packets <= 1 or not 0 < loss < 1:
        return None
    ends = 1 / max(burst_packets, least_burst_packets(loss))
    return min(1.0, loss * ends / (1 - loss)), ends


def variance_ratio(loss: float, burst_packets: float, packets: int) -> float:
    """Return the variance of the number of lost packets, divided by that of independent losses.

    The states of two packets k apart are correlated by (1 - p - r)^k. The sum over all pairs is a
    geometric series.
    """
    chain = compute_gilbert_probabilities(loss, burst_packets)
    if chain is None:
        return 1.0
    kept = 1 - sum(chain)
    if not kept:
        return 1.0
    return (1 + kept) / (1 - kept) - 2 * kept * (1 - kept**packets) / (packets * (1 - kept) ** 2)

"""Losses in bursts: the simple Gilbert model, which is netem's `loss gemodel p r` too.

A link is in a good or a bad state; in the bad one every packet is lost. After each packet a good
link turns bad with probability p, and a bad one good with probability r (Gilbert, Bell Syst. Tech.
J. 39, 1960; Salsano, Ludovici, Ordine and Giustiniano, 2009, for netem). So losses come in runs of
geometric length, on average 1/r packets, and p / (p + r) of all packets are lost. A link that is
told another loss or burst begins in the good state.

Independent losses come in runs too, of 1 / (1 - loss) packets on average. A large loss cannot be
had in short runs, since not more than every other run can be one of packets that arrive: a burst
has at least loss / (1 - loss) packets.
"""

from __future__ import annotations


def least_burst_packets(loss: float) -> float:
    """The shortest mean burst by which a fraction of packets (0 to below 1) can be lost at all: p
    is 1 then.
    """
    return loss / (1 - loss)


def compute_gilbert_probabilities(loss: float, burst_packets: float) -> tuple[float, float] | None:
    """Probabilities p (that a burst begins) and r (that it ends) after a packet.

    Args:
        loss: fraction of packets lost, 0 to 1.
        burst_packets: mean packets lost in a row; taken for `least_burst_packets` where it is less.
            At most 1 is independent loss.

    Returns:
        None where losses are independent, which includes links that lose nothing or everything.
    """
    if burst_packets <= 1 or not 0 < loss < 1:
        return None
    ends = 1 / max(burst_packets, least_burst_packets(loss))
    return min(1.0, loss * ends / (1 - loss)), ends


def variance_ratio(loss: float, burst_packets: float, packets: int) -> float:
    """How many times the variance of independent losses the number lost of so many packets has.

    The states of two packets k apart are correlated by (1 - p - r)^k; the sum over all pairs is the
    geometric series.
    """
    chain = compute_gilbert_probabilities(loss, burst_packets)
    if chain is None:
        return 1.0
    kept = 1 - sum(chain)
    if not kept:
        return 1.0
    return (1 + kept) / (1 - kept) - 2 * kept * (1 - kept**packets) / (packets * (1 - kept) ** 2)

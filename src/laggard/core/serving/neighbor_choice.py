"""Edge ensembles: which neighbors' models a device asks, and how their answers become one.

A neighbor is asked if its answer is expected in time. Of these, one after another is chosen whose
errors are least like those of the models that are asked already: members of an ensemble help as far
as they disagree (L. Kuncheva, C. Whitaker, "Measures of diversity in classifier ensembles",
Machine Learning 51, 2003).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Neighbor:
    """Neighbor of a device.

    Attributes:
        node: its number.
        answer_s: seconds until its answer is expected, with its queue and the link.
        accuracy: accuracy of its model on samples that all models have been tried on.
    """

    node: int
    answer_s: float
    accuracy: float


def measure_errors(answers: Labels, labels: Labels) -> npt.NDArray[np.bool_]:
    """Return which samples each model has got wrong, [models, samples].

    Args:
        answers: label that each model gives each sample, [models, samples].
        labels: true labels, [samples].
    """
    wrong: npt.NDArray[np.bool_] = answers != labels
    return wrong


def choose_neighbors(
    own: int,
    neighbors: Sequence[Neighbor],
    wrong: npt.NDArray[np.bool_],
    budget_s: float,
    most: int,
) -> tuple[int, ...]:
    """Return the nodes that are asked, the most useful one first.

    Each next one is that with which most samples have a majority of right answers; of several, the
    one that errs least where the others do, and then the one that answers soonest.

    Args:
        own: node of the device.
        neighbors: its neighbors that are present.
        wrong: which samples each node's model has got wrong, [nodes, samples].
        budget_s: seconds within which an answer is of use.
        most: largest number of neighbors to ask.
    """
    free = [each for each in neighbors if each.answer_s <= budget_s]
    members = [own]
    while free and len(members) <= most:
        best = min(
            free, key=lambda each: (*_count_errors(wrong, members, each.node), each.answer_s)
        )
        free.remove(best)
        members.append(best.node)
    return tuple(members[1:])


def _count_errors(
    wrong: npt.NDArray[np.bool_], members: Sequence[int], candidate: int
) -> tuple[float, int]:
    """Return how many samples a vote with a candidate gets wrong, and how many errors it shares.

    A tie is half a sample.
    """
    votes = wrong[[*members, candidate]].mean(axis=0)
    shared = wrong[list(members)] & wrong[candidate]
    return float((votes > 0.5).sum() + 0.5 * (votes == 0.5).sum()), int(shared.sum())


def combine_answers(answers: Mapping[int, Floats]) -> Floats:
    """Return the mean of the probabilities that the answers give the classes, [samples, classes].

    Args:
        answers: logits of each node that has answered in time, [samples, classes] each.
    """
    total, count = None, 0
    for logits in answers.values():
        shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probabilities = shifted / shifted.sum(axis=-1, keepdims=True)
        total = probabilities if total is None else total + probabilities
        count += 1
    assert total is not None
    mean: Floats = total / count
    return mean

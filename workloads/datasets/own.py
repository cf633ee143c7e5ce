"""Datasets of the user's own: `package.module:callable`, which is called with the seed.

The callable returns one of two things. It may return the arrays `(train_inputs, train_labels,
test_inputs, test_labels)`, with float images [n, channels, height, width] or integer tokens [n,
length]. Or it returns a `Data` with splits of its own, whose `fetch` returns samples in their
stored form. Their bytes are charged to the host's emulated drive.
"""

from __future__ import annotations

import numpy as np

from laggard.core.errors import InputError
from laggard.workloads.datasets.arrays import Arrays, check_arrays
from laggard.workloads.datasets.dataset import Data
from laggard.workloads.specification.callables import load_callable

RULE = (
    "return the arrays (train_inputs, train_labels, test_inputs, test_labels), or a"
    " laggard.workloads.datasets.dataset.Data"
)


def load(name: str, seed: int) -> Arrays | Data:
    """Call the user's callable, and check the result.

    Raises:
        InputError: it cannot be called, or returns something else.
    """
    returned = load_callable(name)(seed)
    if isinstance(returned, Data):
        return returned
    if not isinstance(returned, tuple) or len(returned) != 4:
        raise InputError(f"{name} returned a {type(returned).__name__} — {RULE}")
    train_inputs, train_labels, test_inputs, test_labels = (np.asarray(part) for part in returned)
    # Kinds of numpy types: f for floats, i and u for integers.
    if (
        train_inputs.ndim not in (2, 4)
        or train_inputs.dtype.kind not in "fiu"
        or train_labels.dtype.kind not in "iu"
    ):
        raise InputError(
            f"{name} returned {train_inputs.dtype} samples of shape {train_inputs.shape} — {RULE}"
        )
    is_tokens = train_inputs.ndim == 2
    if is_tokens and train_inputs.dtype.kind == "f":
        raise InputError(f"{name} returned tokens that are not whole numbers — {RULE}")
    labels = np.concatenate([train_labels, test_labels])
    arrays = Arrays(
        train_inputs=train_inputs,
        train_labels=train_labels,
        test_inputs=test_inputs,
        test_labels=test_labels,
        classes=int(labels.max(initial=0)) + 1,
        vocabulary=int(max(train_inputs.max(initial=0), test_inputs.max(initial=0))) + 1
        if is_tokens
        else None,
    )
    check_arrays(arrays, name)
    return arrays

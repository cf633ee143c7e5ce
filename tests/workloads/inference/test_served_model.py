"""What passes at a cut arrives as it was, as one message of one dimension."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from laggard.workloads.datasets import synthetic
from laggard.workloads.datasets.arrays import Arrays, ArraySplit
from laggard.workloads.datasets.dataset import Data
from laggard.workloads.inference.cut_model import Tensors
from laggard.workloads.inference.served_model import build_served_models, fetch
from laggard.workloads.inference_workload import InferenceWorkload
from laggard.workloads.specification.datasets import Synthetic
from laggard.workloads.transport.frames import Message, pack, unpack


def load(arrays: Arrays) -> Data:
    def split(inputs: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> ArraySplit:
        tokens = arrays.vocabulary is not None
        return ArraySplit(inputs, labels, arrays.scale, arrays.shift, is_tokens=tokens)

    return Data(
        split(arrays.train_inputs, arrays.train_labels),
        split(arrays.test_inputs, arrays.test_labels),
        arrays.train_inputs.shape[1:],
        arrays.classes,
        arrays.vocabulary,
    )


@pytest.mark.parametrize(("kind", "model"), [("images", "resnet8"), ("tokens", "transformer")])
def test_every_cut_passes_a_message(kind: str, model: str) -> None:
    spec = Synthetic.model_validate({"kind": kind, "train": 16, "test": 16})
    workload = InferenceWorkload.model_validate(
        {"kind": "inference", "models": model, "dataset": spec, "requests": {"batch": 3}}
    )
    data = load(synthetic.generate(spec, seed=1))
    (served,) = build_served_models(workload, data, 1, (0.1, 1.0))
    inputs = fetch(data, np.arange(3)).inputs
    expected = served.predict(inputs)
    values: Tensors = (inputs,)
    for cut in range(served.blocks):
        packed = served.pack(values)
        assert packed.nbytes == served.cut_bytes[cut]
        header, payload = pack(Message(1, tensor=packed), 1)
        received = unpack(bytes(header), bytearray(payload), 0).tensor
        assert received is not None
        rest = served.unpack(received, cut)
        with torch.inference_mode():
            for number in range(cut, served.blocks):
                rest = served.model.compute(number, rest)
            values = served.model.compute(cut, values)
        torch.testing.assert_close(rest[0], expected)
    assert all(seconds > 0 for seconds in served.block_s)

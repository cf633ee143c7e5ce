"""Encoders of vectors by themselves: what is sent, what is kept back, and that nothing gets
lost."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laggard.workloads.compress.codec import (
    Codec,
    ErrorFeedbackCodec,
    HalfPrecisionCodec,
    TopKCodec,
    count_tensor_bytes,
)
from laggard.workloads.compress.gradient_packer import GradientPacker
from laggard.workloads.transport.frames import Message, pack, unpack

CODECS = [TopKCodec(0.01), TopKCodec(0.3), TopKCodec(1.0), HalfPrecisionCodec()]
FLOATS = st.floats(-1e4, 1e4, width=32)
vectors = st.lists(FLOATS, min_size=1, max_size=40).map(torch.tensor)


@st.composite
def gradients(draw: st.DrawFn) -> torch.Tensor:
    """Steps by numbers; eighths of whole numbers, whose sums binary fractions hold exactly."""
    length, steps = draw(st.integers(1, 30)), draw(st.integers(1, 12))
    eighths = draw(
        st.lists(st.integers(-(2**13), 2**13), min_size=length * steps, max_size=length * steps)
    )
    return torch.tensor(eighths, dtype=torch.float32).view(steps, length) / 8


@given(gradients(), st.sampled_from(CODECS))
def test_what_was_sent_and_what_is_kept_back_are_all_there_was(
    steps: torch.Tensor, codec: Codec
) -> None:
    """Exactly: the invariant that error feedback's convergence rests on (Stich et al., section
    2)."""
    remembering, sent = ErrorFeedbackCodec(codec), torch.zeros(steps.shape[1])
    for gradient in steps:
        sent += remembering.decode(remembering.encode(gradient), gradient)
        assert remembering.residual is not None
    assert torch.equal(sent + remembering.residual, steps.sum(dim=0))


@given(vectors, vectors, st.floats(0.001, 1.0))
def test_the_largest_are_sent_as_they_are_and_the_others_kept(
    first: torch.Tensor, second: torch.Tensor, fraction: float
) -> None:
    codec = TopKCodec(fraction)
    remembering = ErrorFeedbackCodec(codec)
    for vector in (first, second[: len(first)] if len(second) >= len(first) else first):
        whole = vector if remembering.residual is None else vector + remembering.residual
        sent, kept = codec.decode(remembering.encode(vector), vector), remembering.residual
        assert kept is not None
        assert torch.equal(sent + kept, whole)
        assert ((sent == 0) | (kept == 0)).all()
        assert (sent != 0).sum() <= codec.count(len(whole))
        assert torch.equal(
            sent.abs().sort().values, _but_largest_zero(whole.abs(), codec.count(len(whole)))
        )


def _but_largest_zero(magnitudes: torch.Tensor, count: int) -> torch.Tensor:
    ordered = magnitudes.sort().values
    ordered[: len(ordered) - count] = 0
    return ordered


@given(vectors)
def test_all_of_it_is_what_it_was(vector: torch.Tensor) -> None:
    remembering = ErrorFeedbackCodec(TopKCodec(1.0))
    assert torch.equal(remembering.decode(remembering.encode(vector), vector), vector)
    assert remembering.residual is not None
    assert not remembering.residual.any()


@pytest.mark.parametrize(
    ("fraction", "length", "count"),
    [
        (0.01, 100, 1),
        (0.01, 101, 2),
        (0.07, 100, 7),
        (0.01, 5, 1),
        (1.0, 9, 9),
        (0.5, 3, 2),
        (0.01, 0, 0),
    ],
)
def test_how_many_are_sent(fraction: float, length: int, count: int) -> None:
    assert TopKCodec(fraction).count(length) == count
    assert count_tensor_bytes(TopKCodec(fraction).encode(torch.rand(length))) == 8 * count


@given(vectors)
def test_half_precision_is_off_by_its_rounding(vector: torch.Tensor) -> None:
    """IEEE 754 binary16: eleven bits of significand, and steps of 2^-24 below 2^-14."""
    sent = HalfPrecisionCodec().decode(HalfPrecisionCodec().encode(vector), vector)
    assert (
        (sent - vector).abs() <= torch.maximum(vector.abs() * 2.0**-11, torch.tensor(2.0**-25))
    ).all()


def test_what_half_precision_has_no_room_for_is_sent_later() -> None:
    remembering, vector = ErrorFeedbackCodec(HalfPrecisionCodec()), torch.tensor([1e5, -2e5, 1.0])
    sent = torch.zeros(3)
    for each in (vector, torch.zeros(3), torch.zeros(3), torch.zeros(3)):
        sent += remembering.decode(remembering.encode(each), each)
    assert torch.equal(sent, vector)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("codec", CODECS)
def test_a_payload_fits_its_room_and_every_type(codec: Codec, dtype: torch.dtype) -> None:
    vector = torch.linspace(-1, 1, 333, dtype=dtype)
    payload, room = codec.encode(vector), codec.allocate_payload(vector)
    assert (payload.shape, payload.dtype) == (room.shape, room.dtype)
    assert codec.decode(payload, vector).dtype == dtype
    if isinstance(codec, TopKCodec):
        assert count_tensor_bytes(payload) == codec.count(333) * (dtype.itemsize + 4)
    else:
        assert count_tensor_bytes(payload) == 333 * 2


def test_sums_of_payloads_are_payloads_of_sums_where_a_codec_says_so() -> None:
    one, other = torch.tensor([1.0, 2.0, -3.0]), torch.tensor([0.5, 8.0, 3.0])
    codec = HalfPrecisionCodec()
    assert codec.summable
    assert torch.equal(codec.decode(codec.encode(one) + codec.encode(other), one), one + other)
    assert not TopKCodec(0.1).summable


@given(vectors, st.sampled_from(CODECS))
def test_adding_a_payload_adds_what_it_stands_for(vector: torch.Tensor, codec: Codec) -> None:
    total, payload = torch.ones_like(vector), codec.encode(vector)
    codec.add_decoded(payload, total)
    assert torch.equal(total, 1 + codec.decode(payload, vector))


@pytest.mark.parametrize("buffers", [0, 1, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("codec", CODECS)
def test_a_parcel_comes_back_with_its_buffers_untouched(
    codec: Codec, dtype: torch.dtype, buffers: int
) -> None:
    """As a message's bytes, wherever they lie in memory."""
    vector = torch.linspace(-3, 7, 101 + buffers, dtype=dtype).cos()
    packed = GradientPacker(ErrorFeedbackCodec(codec), 101, vector).pack(vector)
    _, payload = pack(Message(1, tensor=packed), 1)
    for offset in range(3):
        header, _ = pack(Message(1, tensor=packed), 1)
        arrived = unpack(
            bytes(header), memoryview(bytearray(offset) + bytearray(payload))[offset:], 0
        ).tensor
        assert arrived is not None
        came = GradientPacker(codec, 101, vector).unpack(arrived)
        assert torch.equal(came[101:], vector[101:])
        assert torch.equal(came[:101], codec.decode(codec.encode(vector[:101]), vector[:101]))

"""Sizes of a collective's inputs, from the arguments of its event."""

from __future__ import annotations

from collections.abc import Mapping

from laggard.analysis.formats.trace_json import Json
from laggard.analysis.formats.trace_json.event_stream import is_json_list

_ELEMENT_BYTES = {
    "float": 4,
    "double": 8,
    "half": 2,
    "c10::half": 2,
    "c10::bfloat16": 2,
    "bfloat16": 2,
    "long int": 8,
    "long": 8,
    "int": 4,
}
_MAX_SIZE = 1 << 61


def parse_message_sizes(arguments: Mapping[str, Json]) -> tuple[int, int]:
    """Return the elements and bytes of the inputs.

    gloo records shapes and types, and NCCL records the number of elements.
    """
    elements, kind = arguments.get("In msg nelems"), arguments.get("dtype")
    if isinstance(elements, int) and isinstance(kind, str):
        return _discard_out_of_range(elements), _discard_out_of_range(
            elements * _ELEMENT_BYTES.get(kind.lower(), 0)
        )
    shapes, kinds = arguments.get("Input Dims"), arguments.get("Input type")
    if not is_json_list(shapes) or not is_json_list(kinds):
        return 0, 0
    counts = [_count_elements(shape) for shape in shapes]
    sizes = [_ELEMENT_BYTES.get(str(kind).lower(), 0) for kind in kinds]
    return _discard_out_of_range(sum(counts)), _discard_out_of_range(
        sum(count * size for count, size in zip(counts, sizes, strict=False))
    )


def _discard_out_of_range(size: int) -> int:
    return size if 0 <= size <= _MAX_SIZE else 0


def _count_elements(shape: Json) -> int:
    """Return the number of elements of a tensor's shape, or of a list of shapes."""
    if not is_json_list(shape) or not shape:
        return 0
    if all(is_json_list(inner) for inner in shape):
        return sum(_count_elements(inner) for inner in shape)
    count = 1
    for size in shape:
        count *= size if isinstance(size, int) else 1
        # The product of many sizes would have more digits than memory.
        if abs(count) > _MAX_SIZE:
            return 0
    return count

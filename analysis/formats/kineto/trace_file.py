"""Parser of one rank's torch.profiler trace: Chrome JSON from Kineto, checked and put in columns.

Messages name an event by its position in `traceEvents`, counted from 0. Only complete events (`ph:
X`) have times; the other events are ignored.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard, cast

import numpy as np

from laggard.analysis.formats.kineto.process_groups import (
    GroupConfig,
    GroupLabel,
    parse_group_config,
    parse_group_label,
)
from laggard.analysis.tables.columns import Columns, IntArray, TextArray
from laggard.core.errors import TraceFormatError
from laggard.core.files.input_files import (
    MAX_TRACE_BYTES,
    decompress_bounded,
    parse_int,
    read_bounded,
)

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]

CATEGORIES = (
    "cpu_op",
    "user_annotation",
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "cuda_runtime",
    "cuda_driver",
    "python_function",
)
"""Categories that are read; events of other categories are ignored.

Of the calls of Python functions, only garbage collections are read: there are very many calls."""
GARBAGE_COLLECTION = re.compile(
    r"^\W*((python[ _]?|runtime triggered )?(gc|garbage[ _]collect\w*)"
    r"|built-in (function|method) (gc\.)?collect)\b",
    re.IGNORECASE,
)
_PYTHON_CALL = CATEGORIES.index("python_function")
_RANK_IN_NAME = re.compile(r"rank[^0-9]{0,2}(\d{1,6})", re.IGNORECASE)
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
# First bytes of every gzip file (RFC 1952).
_GZIP_MAGIC = b"\x1f\x8b"
_SHOWN_CHARS = 60
_NAME_HEAD_CHARS, _NAME_TAIL_CHARS = 64, 32
_MAX_INT32 = np.iinfo(np.int32).max
_MAX_TIME_NS = 1 << 61
"""Latest time that is accepted; the sum of two such times still fits in 64 bits."""


@dataclass(frozen=True)
class ProfilerEvents(Columns):
    """Complete events, in order of their starts.

    `thread` is a thread of the host or a stream of the device. `correlation` joins a kernel with
    the call that launched it, or is -1. `elements` and `bytes` are those of the inputs, or 0 if
    not recorded. `label` is the index of the description of a collective in `RankTrace.labels`, or
    -1.
    """

    category: IntArray
    name: TextArray
    thread: IntArray
    start_ns: IntArray
    end_ns: IntArray
    correlation: IntArray
    elements: IntArray
    bytes: IntArray
    label: IntArray


@dataclass(frozen=True)
class RankTrace:
    """Trace of one rank.

    `host` and `device` are empty, and `world_size` is 0, if the file does not record them. `labels`
    are the different descriptions of collectives, and `groups` the process groups of the rank.
    """

    path: Path
    rank: int
    world_size: int
    host: str
    device: str
    events: ProfilerEvents
    labels: tuple[GroupLabel, ...] = ()
    groups: GroupConfig = field(default_factory=GroupConfig)


def read_rank_trace(path: Path, *, only_file: bool) -> RankTrace:
    """Read and check the trace of one rank.

    Args:
        path: a .json or .json.gz file.
        only_file: if true, the trace is the only one, and has rank 0 if it does not record its
            rank.

    Raises:
        TraceFormatError: the file is invalid; the error names the byte or the event.
    """
    document = _parse_document(path)
    raw = document.get("traceEvents")
    if not _is_list(raw):
        raise _make_format_error(
            path,
            "",
            "it has no list traceEvents",
            "give an unchanged file from prof.export_chrome_trace(...)",
        )
    distributed = document.get("distributedInfo")
    details = distributed if isinstance(distributed, Mapping) else {}
    base = document.get("baseTimeNanoseconds", 0)
    if not isinstance(base, int) or abs(base) > _MAX_TIME_NS:
        raise _make_format_error(
            path,
            "baseTimeNanoseconds",
            f"{base!r} is not an integer number of nanoseconds since 1970",
            "export the trace again",
        )
    events, labels = _parse_events(path, raw, base)
    devices = document.get("deviceProperties")
    first = devices[0] if _is_list(devices) and devices else {}
    host, world = document.get("host_name"), details.get("world_size")
    return RankTrace(
        path=path,
        rank=_parse_rank(path, details, only_file=only_file),
        world_size=world if isinstance(world, int) and world <= _MAX_INT32 else 0,
        host=host if isinstance(host, str) else "",
        device=str(first.get("name", "")) if isinstance(first, Mapping) else "",
        events=events,
        labels=labels,
        groups=parse_group_config(details),
    )


def _parse_document(path: Path) -> Mapping[str, Json]:
    content = _read_content(path)
    try:
        document = cast(
            "Json", json.loads(content, parse_constant=_reject_constant, parse_int=parse_int)
        )
    except json.JSONDecodeError as error:
        # The decoder counts characters; the message names a byte. An error at the very end, or in
        # an unterminated string, means a truncated file.
        at = len(error.doc[: error.pos].encode("utf-8", "surrogatepass"))
        cut = at >= len(content.rstrip()) - 1 or "Unterminated" in error.msg
        what = "the JSON is truncated" if cut else f"invalid JSON ({error.msg})"
        raise _make_format_error(
            path, f"byte {at} of {len(content)}", what, "copy the whole file again"
        ) from error
    except RecursionError as error:
        raise _make_format_error(
            path,
            "",
            "its JSON is nested too deeply",
            "give a file from prof.export_chrome_trace(...)",
        ) from error
    except UnicodeDecodeError as error:
        raise _make_format_error(
            path,
            f"byte {error.start}",
            "the file is not UTF-8 text",
            "give a .json or .json.gz file from torch.profiler",
        ) from error
    except _NotANumberError as error:
        raise _make_format_error(
            path, "", f"{error} is not a valid JSON number", "export the trace again"
        ) from error
    except ValueError as error:
        raise _make_format_error(path, "", f"invalid JSON ({error})", "export it again") from error
    if not isinstance(document, Mapping):
        raise _make_format_error(
            path,
            "",
            "it is not a JSON object with traceEvents",
            "give a file from prof.export_chrome_trace(...)",
        )
    return document


class _NotANumberError(ValueError):
    pass


def _reject_constant(name: str) -> float:
    raise _NotANumberError(name)


def _read_content(path: Path) -> bytes:
    data = read_bounded(path, MAX_TRACE_BYTES)
    if not path.name.endswith(".gz"):
        if data.startswith(_GZIP_MAGIC):
            raise _make_format_error(
                path,
                "byte 0",
                "the file is gzipped, but its name does not end in .gz",
                "rename it to end in .json.gz",
            )
        return data
    if not data.startswith(_GZIP_MAGIC):
        raise _make_format_error(
            path,
            "byte 0",
            "the file's name ends in .gz, but it is not gzipped",
            "rename it to end in .json, or gzip it",
        )
    try:
        return decompress_bounded(path, data)
    except (OSError, EOFError, zlib.error) as error:
        raise _make_format_error(
            path,
            f"byte {len(data)}, its end",
            f"the gzip file is truncated or damaged ({error})",
            "copy it again",
        ) from error


def _parse_rank(path: Path, distributed: Mapping[str, Json], *, only_file: bool) -> int:
    rank = distributed.get("rank")
    if isinstance(rank, int) and 0 <= rank <= _MAX_INT32:
        return rank
    named = _RANK_IN_NAME.search(path.name)
    if named:
        return int(named[1])
    if only_file:
        return 0
    raise _make_format_error(
        path,
        "distributedInfo.rank",
        "neither the file nor its name contains its rank",
        "export after init_process_group, or name the files rank0.json, rank1.json, ...",
    )


def _parse_events(
    path: Path, raw: Sequence[Json], base_ns: int
) -> tuple[ProfilerEvents, tuple[GroupLabel, ...]]:
    codes = {name: code for code, name in enumerate(CATEGORIES)}
    rows: list[tuple[int, str, int, int, int, int, int, int, int]] = []
    threads: dict[tuple[str, str], int] = {}
    labels: dict[GroupLabel, int] = {}
    for index, event in enumerate(raw):
        if not isinstance(event, Mapping):
            raise _make_format_error(
                path,
                f"event {index}",
                f"{repr(event)[:_SHOWN_CHARS]} is not an object",
                "export the trace again",
            )
        code = codes.get(str(event.get("cat", "")).lower())
        if event.get("ph") != "X" or code is None:
            continue
        if code == _PYTHON_CALL and not GARBAGE_COLLECTION.match(str(event.get("name"))):
            continue
        start_us, length_us = (
            _parse_microseconds(path, index, event, key) for key in ("ts", "dur")
        )
        if length_us < 0:
            raise _make_format_error(
                path, f"event {index}, dur", f"{length_us} is negative", "export the trace again"
            )
        name = event.get("name")
        if not isinstance(name, str):
            raise _make_format_error(
                path,
                f"event {index}, name",
                f"{repr(name)[:_SHOWN_CHARS]} is not text",
                "export the trace again",
            )
        arguments = event.get("args")
        arguments = arguments if isinstance(arguments, Mapping) else {}
        # Process and thread numbers may be text or numbers, and only pairs of both are unique.
        place = (str(event.get("pid")), str(event.get("tid")))
        start_ns = base_ns + round(start_us * 1000)
        correlation = arguments.get("correlation", -1)
        elements, size = _parse_input_sizes(arguments)
        label = parse_group_label(arguments)
        rows.append(
            (
                code,
                _shorten_name(name),
                threads.setdefault(place, len(threads)),
                start_ns,
                start_ns + round(length_us * 1000),
                correlation
                if isinstance(correlation, int) and 0 <= correlation <= _MAX_TIME_NS
                else -1,
                elements,
                size,
                -1 if label is None else labels.setdefault(label, len(labels)),
            )
        )
    return _to_columns(rows), tuple(labels)


def _shorten_name(name: str) -> str:
    """Return the beginning and end of a name, which identify it.

    Names of templated kernels have thousands of characters.
    """
    return (
        name
        if len(name) <= _NAME_HEAD_CHARS + _NAME_TAIL_CHARS
        else name[:_NAME_HEAD_CHARS] + name[-_NAME_TAIL_CHARS:]
    )


def _to_columns(
    rows: Sequence[tuple[int, str, int, int, int, int, int, int, int]],
) -> ProfilerEvents:
    # Longer events first, so that an enclosing event precedes those inside it.
    ordered = sorted(rows, key=lambda row: (row[3], -row[4]))
    names = np.array([row[1] for row in ordered], dtype=np.str_)
    places = (0, 2, 3, 4, 5, 6, 7, 8)
    category, *rest = (
        np.array([row[place] for row in ordered], dtype=np.int64) for place in places
    )
    return ProfilerEvents(category, names, *rest)


def _parse_microseconds(path: Path, index: int, event: Mapping[str, Json], key: str) -> float:
    value = event.get(key)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) <= _MAX_TIME_NS / 1000
    ):
        details = (
            "is missing"
            if value is None
            else f"{repr(value)[:_SHOWN_CHARS]} is not a number of microseconds"
        )
        raise _make_format_error(path, f"event {index}, {key}", details, "export the trace again")
    return float(value)


def _parse_input_sizes(arguments: Mapping[str, Json]) -> tuple[int, int]:
    """Return the elements and bytes of the inputs.

    gloo records shapes and types, and NCCL records the number of elements.
    """
    elements, kind = arguments.get("In msg nelems"), arguments.get("dtype")
    if isinstance(elements, int) and isinstance(kind, str):
        return _discard_out_of_range(elements), _discard_out_of_range(
            elements * _ELEMENT_BYTES.get(kind.lower(), 0)
        )
    shapes, kinds = arguments.get("Input Dims"), arguments.get("Input type")
    if not _is_list(shapes) or not _is_list(kinds):
        return 0, 0
    counts = [_count_elements(shape) for shape in shapes]
    sizes = [_ELEMENT_BYTES.get(str(kind).lower(), 0) for kind in kinds]
    return _discard_out_of_range(sum(counts)), _discard_out_of_range(
        sum(count * size for count, size in zip(counts, sizes, strict=False))
    )


def _discard_out_of_range(size: int) -> int:
    return size if 0 <= size <= _MAX_TIME_NS else 0


def _count_elements(shape: Json) -> int:
    """Return the number of elements of a tensor's shape, or of a list of shapes."""
    if not _is_list(shape) or not shape:
        return 0
    if all(_is_list(inner) for inner in shape):
        return sum(_count_elements(inner) for inner in shape)
    count = 1
    for size in shape:
        count *= size if isinstance(size, int) else 1
        # The product of many sizes would have more digits than memory.
        if abs(count) > _MAX_TIME_NS:
            return 0
    return count


def _is_list(value: Json) -> TypeGuard[Sequence[Json]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _make_format_error(path: Path, where: str, problem: str, fix: str) -> TraceFormatError:
    return TraceFormatError(str(path), where, problem, fix)

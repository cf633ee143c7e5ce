"""Lists of events of any size: batches, borders, repairs and refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.analysis.formats.trace_json import event_stream
from laggard.analysis.formats.trace_json.event_stream import EventStream
from laggard.analysis.formats.trace_json.repair import RepairCounts, repair_json
from laggard.core.errors import TraceFormatError

PATH = Path("trace.json")


def chunks(content: bytes, size: int) -> Iterator[bytes]:
    return (content[at : at + size] for at in range(0, len(content), size))


def read(content: bytes, size: int = 64, **options: Any) -> tuple[list[Any], EventStream]:
    stream = EventStream(PATH, chunks(content, size), size=len(content), **options)
    found: list[Any] = []
    for batch in stream.batches():
        assert batch.first == len(found)
        found += batch.events
    return found, stream


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8)
    | st.sampled_from(["},{", "]}", '"', "\\", '\\"},{"', "[{", "a],"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(
    events=st.lists(st.dictionaries(st.text(max_size=4), values, max_size=4) | values, max_size=30),
    before=values,
    after=values,
    size=st.integers(1, 200),
    indent=st.sampled_from([None, 0, 2]),
)
@settings(max_examples=200, deadline=None)
def test_batches_are_the_list_whatever_the_chunks(
    events: list[Any], before: Any, after: Any, size: int, indent: int | None
) -> None:
    document = {"before": before, "traceEvents": events, "after": after}
    found, stream = read(json.dumps(document, indent=indent).encode(), size)
    assert found == events
    assert stream.metadata == {**document, "traceEvents": [0]}
    assert stream.repairs == RepairCounts()


def test_memory_is_that_of_a_batch() -> None:
    event = json.dumps({"name": "x" * 100, "args": {"inner": [{}, {}]}}).encode()
    content = b'{"traceEvents": [' + b",\n".join([event] * 1000) + b'], "z": [{}, {}]}'
    stream = EventStream(PATH, chunks(content, 1000), size=len(content))
    sizes = [len(batch.events) for batch in stream.batches()]
    assert sum(sizes) == 1000
    assert max(sizes) < 20


BROKEN = {
    rb'{"name": "C:\Users\x\nvcuda"}': ({"name": "C:\\Users\\x\nvcuda"}, RepairCounts(escapes=2)),
    b'{"name": "a\x01b\tc\x00"}': ({"name": "a\x01b\tc\x00"}, RepairCounts(controls=3)),
    b'{"a": NaN, "b": [-inf, Infinity, -nan(ind), N/A], "c": "NaN inf"}': (
        {"a": None, "b": [None] * 4, "c": "NaN inf"},
        RepairCounts(numbers=5),
    ),
    b'{"a": 1e999, "b": 1e300, "c": 2e+0308, "nan": 1}': (
        {"a": None, "b": 1e300, "c": None, "nan": 1},
        RepairCounts(numbers=2),
    ),
    rb'{"name": "\ud83d\ude00 \ud800 \u00e9 \"},{"}': (
        {"name": '😀 \ufffd é "},{'},
        RepairCounts(characters=1),
    ),
    b'{"name": "caf\xe9 \xc3\xa9"}': ({"name": "caf\ufffd é"}, RepairCounts(characters=1)),
}


@pytest.mark.parametrize("text", BROKEN)
@pytest.mark.parametrize("size", [7, 50, 10_000])
def test_what_has_one_meaning_is_repaired_and_counted(text: bytes, size: int) -> None:
    expected, counts = BROKEN[text]
    content = b'{"traceEvents": [{"a": 1}, ' + text + b', {"b": [{}, {}]}], "z": 1}'
    found, stream = read(content, size)
    assert found == [{"a": 1}, expected, {"b": [{}, {}]}]
    assert stream.repairs == counts
    assert len(list(counts.describe())) == 1


def test_faults_outside_the_list_are_repaired_too() -> None:
    found, stream = read(rb'{"traceName": "C:\x", "traceEvents": [{}], "v": NaN}')
    assert found == [{}]
    assert stream.metadata == {"traceName": "C:\\x", "traceEvents": [0], "v": None}
    assert (stream.repairs.escapes, stream.repairs.numbers) == (1, 1)


@given(values)
def test_valid_json_is_never_changed(value: Any) -> None:
    for ascii_only in (True, False):
        text = json.dumps(value, ensure_ascii=ascii_only).encode()
        assert repair_json(text) == (text, RepairCounts())


@pytest.mark.parametrize("end", [b'{"a": 1},]}', b'{"a": 1} , \n ] , "z": [{}, {}]}'])
def test_a_comma_after_the_last_event_is_ignored_and_told(end: bytes) -> None:
    found, stream = read(b'{"traceEvents": [{"a": 0}, ' + end)
    assert found == [{"a": 0}, {"a": 1}]
    assert list(stream.repairs.describe()) == ["commas after the last event, ignored: 1"]


REFUSED = {
    b'{"traceEvents": [{"a": 1}, {"a": ': "byte 33 of 33: the JSON is truncated",
    b'{"traceEvents": [{"a": 1}, {"a": "},{': "byte 37 of 37: the JSON is truncated",
    b'{"traceEvents": [{"a": 1}]': "byte 26 of 26: the JSON is truncated",
    b'{"traceEvents": [{"a": 1}], "z": "y': "byte 35 of 35: the JSON is truncated",
    b'{"traceEvents": [{"a": 1}], z}': "byte 28 of 30: invalid JSON",
    b'{"traceEvents": [{"a": 1}, {"a" 1}, {}]}': "byte 32, event 1: invalid JSON",
    b'{"traceEvents": [{"a": 1}, {"a": 1} {}]}': "byte 36, event 2: invalid JSON",
    b'{"traceEvents": [{"a": 1},, {}]}': "byte 26, event 1: invalid JSON",
    b'{"traceEvents": [{"n": "say "hi""}, {}]}': "event 0: invalid JSON",
    b'{"inner": {"traceEvents": [{"a": 1}]}}': "it has no list traceEvents of its own",
    b'{"traceEvents": [{"a": ' + b"[" * 2000 + b"]" * 2000 + b"}]}": "nested too deeply",
    b'{"traceEvents": {}}': "it has no list traceEvents",
    b"[{}]": "it is not a JSON object with traceEvents",
    b"": "byte 0: the JSON is truncated",
}


@pytest.mark.parametrize("content", REFUSED, ids=range(len(REFUSED)))
@pytest.mark.parametrize("size", [5, 1000])
def test_what_has_no_meaning_is_refused_with_its_byte(content: bytes, size: int) -> None:
    with pytest.raises(TraceFormatError, match=REFUSED[content]) as refused:
        read(content, size)
    assert ("copy" in refused.value.fix) == ("truncated" in str(refused.value))


def test_one_huge_event_and_a_huge_head_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MAX_EVENT_BYTES", 1 << 20)
    monkeypatch.setattr(event_stream, "MAX_METADATA_BYTES", 1 << 20)
    huge = b'"' + b"x" * (3 << 20) + b'"'
    with pytest.raises(TraceFormatError, match="event 1 has more than 1 MiB"):
        read(b'{"traceEvents": [{}, {"a": ' + huge + b"}, {}]}", 1 << 18)
    with pytest.raises(TraceFormatError, match="no list traceEvents in its first 1 MiB"):
        read(b'{"a": ' + huge + b', "traceEvents": []}', 1 << 18)
    with pytest.raises(TraceFormatError, match="more than 1 MiB follow the list"):
        read(b'{"traceEvents": [{}], "a": ' + huge + b"}", 1 << 18)


def test_a_list_alone_may_lack_its_end() -> None:
    content = b'[\n{"a": 1},\n{"a": 2},\n{"a"'
    assert read(content, key="", may_be_open=True)[0] == [{"a": 1}, {"a": 2}]
    assert read(content[:21], key="", may_be_open=True)[0] == [{"a": 1}, {"a": 2}]
    assert read(b"[]", key="", may_be_open=True)[0] == []
    with pytest.raises(TraceFormatError, match="no list of events"):
        read(b'{"a": []}', key="")

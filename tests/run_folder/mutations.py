"""Seeded damage to a run folder or a trace, as a stranger or a bad disk might do it."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Json = Any
Holder = Any
"""A document of JSON, and an object or list in it."""

STRANGE_INTEGERS = (-(2**63), -(2**31), -1, 0, 1, 7, 4095, 4096, 2**31 - 1, 2**31, 2**62, 2**63 - 1)
STRANGE_VALUES = (
    None, True, -1, 0, 4096, 10**6, 2**31 - 1, 2**31, 2**63, 10**24, 1e308, -1e308, 5e-324, "", "x" * 5000, "\x1b[2J\x07",
    "\ud800", "../../outside", "/etc/passwd", "\u202e", [], {}, [[]], {"a": {}}, "NaN", "running", "9" * 5000, ["B"],
)  # fmt: skip
STRANGE_FACTORS = (-1, 0, 0.5, 1e-9, 1e6, 1e18, 1e300)
TELLING_KEYS = (
    "rank", "world_size", "ranks", "pg_config", "Process Group Ranks", "Process Group Name",
    "Group size", "ts", "dur", "pid", "tid", "ph", "name", "time_created_ns", "duration_ms",
    "collective_seq_id", "process_group", "input_sizes", "Input Dims", "correlation", "entries",
    "traceEvents", "hosts", "measured", "start_ns", "jobs", "stages",
)  # fmt: skip
"""Keys whose values say which rank, when, or with whom; half of the places of damage are theirs."""
DEEP = 60
"""Lists within each other, more than any trace has and fewer than a reader's own limit."""
RAW_VALUES = ("NaN", "Infinity", "-1e999", "9" * 5000, "[" * 3000, '"\\ud800"', "nul", "")


Change = Callable[[Path, random.Random], str]


def mutate_file(path: Path, rng: random.Random) -> str:
    """Damage one file in a random way, and return what was done."""
    return damage_content(path, rng, _replace_by_other)


def damage_content(path: Path, rng: random.Random, *others: Change) -> str:
    """Damage the content of one file in a random way, and return what was done.

    Args:
        path: the file.
        rng: source of the damage.
        others: further kinds of damage.
    """
    kinds: list[Change] = [_flip, _cut, *others]
    if path.name.endswith((".json", ".jsonl")):
        kinds += [_mutate_json] * 5 + [_mutate_json_text]
        kinds += [_scale_field, _retype_field, _copy_value, _repeat_items, _nest_value] * 2
    elif path.name.endswith(".parquet"):
        kinds += [_mutate_table] * 6
    elif path.name.endswith(".gz"):
        kinds += [_mutate_compressed] * 4
    return f"{path.name}: {rng.choice(kinds)(path, rng)}"


def _flip(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 8)):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(data)
    return "bytes"


def _cut(path: Path, rng: random.Random) -> str:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data) + 1)])
    return "cut"


def _replace_by_other(path: Path, rng: random.Random) -> str:
    kind = rng.choice(("missing", "folder", "pipe", "null", "dangling", "loop", "other"))
    path.unlink()
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "null":
            path.symlink_to("/dev/zero")
        case "dangling":
            path.symlink_to("none")
        case "loop":
            path.symlink_to(path.name)
        case "other":
            path.write_bytes(b"\x00\xff" * 200)
    return kind


def _mutate_json(path: Path, rng: random.Random) -> str:
    """Replace up to three values."""
    return _change_json(path, rng, rng.randint(1, 3), lambda _, __: rng.choice(STRANGE_VALUES))


def _scale_field(path: Path, rng: random.Random) -> str:
    """Multiply all numbers of one key: negative or huge times, ranks and sizes."""
    factor = rng.choice(STRANGE_FACTORS)
    return _change_field(
        path, rng, lambda value: value * factor if isinstance(value, int | float) else value
    )


def _retype_field(path: Path, rng: random.Random) -> str:
    """Give all values of one key another type: numbers as text, text as numbers, lists as text."""
    kinds: tuple[Callable[[object], object], ...] = (str, json.dumps, _to_number, bool)
    return _change_field(path, rng, rng.choice(kinds))


def _to_number(value: object) -> object:
    try:
        return float(str(value))
    except ValueError:
        return len(str(value))


def _copy_value(path: Path, rng: random.Random) -> str:
    """Give one place the value that its key has elsewhere: ids and ranks that are there twice."""

    def find_other(key: object, places: list[tuple[Holder, object]]) -> object:
        values = [holder[other] for holder, other in places if other == key]
        # A value that holds the place itself would hold itself.
        return deepcopy(rng.choice(values)) if values else None

    return _change_json(path, rng, rng.randint(1, 3), find_other)


def _repeat_items(path: Path, rng: random.Random) -> str:
    """Repeat, drop or reorder the items of one list."""

    def rearrange(value: object) -> object:
        if not isinstance(value, list) or not value:
            return value
        kind = rng.choice(("twice", "often", "first", "none", "shuffled", "without one"))
        at = rng.randrange(len(value))
        return {
            "twice": value + value,
            "often": value + [value[at]] * 50,
            "first": value[:1],
            "none": [],
            "shuffled": rng.sample(value, len(value)),
            "without one": value[:at] + value[at + 1 :],
        }[kind]

    return _change_field(path, rng, rearrange, of_lists=True)


def _nest_value(path: Path, rng: random.Random) -> str:
    """Put one value into many lists or objects."""

    def nest(key: object, places: list[tuple[Holder, object]]) -> object:
        value: object = deepcopy(rng.choice([holder[at] for holder, at in places if at == key]))
        in_objects = rng.random() < 0.5
        for _ in range(rng.choice((1, 2, DEEP))):
            value = {"a": value} if in_objects else [value]
        return value

    return _change_json(path, rng, 1, nest)


def _change_json(
    path: Path,
    rng: random.Random,
    count: int,
    choose: Callable[[object, list[tuple[Holder, object]]], object],
) -> str:
    """Replace the values at some places of a file, and return what was done."""
    documents, places = _read_places(path)
    done = []
    for holder, key in [_choose_place(places, rng) for _ in range(count)] if places else ():
        holder[key] = value = choose(key, places)
        done.append(f"{key}={value!r:.40}")
    _write_documents(path, documents)
    return ", ".join(done)


def _change_field(
    path: Path, rng: random.Random, change: Callable[[object], object], *, of_lists: bool = False
) -> str:
    """Change all values of one key of a file, or one list, and return what was done."""
    documents, places = _read_places(path)
    if of_lists:
        places = [(holder, key) for holder, key in places if isinstance(holder[key], list)]
    if not places:
        return "nothing"
    chosen, name = _choose_place(places, rng)
    for holder, key in list(places):
        if (holder is chosen or not of_lists) and key == name:
            holder[key] = change(holder[key])
    _write_documents(path, documents)
    return f"all {name}"


def _choose_place(places: list[tuple[Holder, object]], rng: random.Random) -> tuple[Holder, object]:
    telling = [place for place in places if place[1] in TELLING_KEYS]
    return rng.choice(telling if telling and rng.random() < 0.5 else places)


def _read_places(path: Path) -> tuple[list[Json], list[tuple[Holder, object]]]:
    """Return the documents of a file, and every place in them."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    documents: list[Json] = [json.loads(line) for line in lines if line.strip()]
    places: list[tuple[Holder, object]] = []
    _list_places(documents, places)
    return documents, places


def _write_documents(path: Path, documents: list[Json]) -> None:
    path.write_text("\n".join(json.dumps(each) for each in documents) + "\n")


def _list_places(value: Json, places: list[tuple[Holder, object]]) -> None:
    pairs = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in list(pairs):
        places.append((value, key))
        _list_places(inner, places)


def _mutate_json_text(path: Path, rng: random.Random) -> str:
    text = path.read_text()
    value = rng.choice(RAW_VALUES)
    commas = [at for at, c in enumerate(text) if c in ",:["] or [0]
    at = rng.choice(commas)
    path.write_text(text[: at + 1] + value + text[at + 1 :])
    return f"text {value[:20]}"


def _mutate_compressed(path: Path, rng: random.Random) -> str:
    plain = path.with_name("plain.json")
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    changes = (_mutate_json, _mutate_json_text, _scale_field, _retype_field, _copy_value)
    done = rng.choice(changes)(plain, rng)
    path.write_bytes(gzip.compress(plain.read_bytes(), 1))
    plain.unlink()
    return done


def _mutate_table(path: Path, rng: random.Random) -> str:
    table = pq.read_table(path)
    done = []
    for _ in range(rng.randint(1, 2)):
        name = rng.choice(table.column_names)
        kind = rng.choice(("value", "value", "value", "constant", "drop", "retype", "rows", "null"))
        done.append(f"{kind} {name}")
        at = table.column_names.index(name)
        column = table.column(name).to_pylist()
        if kind == "drop":
            table = table.remove_column(at)
            continue
        if kind == "rows":
            table = table.take(
                pa.array(
                    [rng.randrange(len(table)) for _ in range(rng.choice((0, 1, 5, 200)))]
                    if len(table)
                    else [],
                    pa.int64(),
                )
            )
            continue
        whole = kind == "constant"
        value = None if kind == "null" else _choose_value(table.schema.field(name).type, rng)
        for row in range(len(column)) if whole else [rng.randrange(len(column))] if column else []:
            column[row] = value
        try:
            changed = pa.array(column, _choose_type(table.schema.field(name).type, kind, rng))
        except (pa.ArrowException, ValueError, OverflowError, TypeError):
            continue
        table = table.set_column(at, name, changed)
    if not table.column_names:
        return "nothing"
    pq.write_table(table, path)
    return ", ".join(done)


def _choose_value(kind: pa.DataType, rng: random.Random) -> object:
    if pa.types.is_integer(kind):
        bits = kind.bit_width - (0 if pa.types.is_unsigned_integer(kind) else 1)
        return rng.choice([v for v in STRANGE_INTEGERS if abs(v) < 2**bits])
    if pa.types.is_floating(kind):
        return rng.choice((float("nan"), float("inf"), -1.0, 0.0, 1e308, -1e308, 5e-324))
    if pa.types.is_boolean(kind):
        return rng.choice((True, False))
    return rng.choice(("", "x" * 300, "\x1b[2J", "<script>", "none", "comm", "\u202e"))


def _choose_type(kind: pa.DataType, change: str, rng: random.Random) -> pa.DataType:
    if change == "retype":
        return rng.choice((pa.string(), pa.int64(), pa.float64(), pa.uint64(), pa.binary()))
    return kind

"""Seeded damage to a run folder or a trace, as a stranger or a bad disk might do it."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

STRANGE_INTEGERS = (-(2**63), -(2**31), -1, 0, 1, 7, 4095, 4096, 2**31 - 1, 2**31, 2**62, 2**63 - 1)
STRANGE_VALUES = (
    None, True, -1, 0, 2**31, 2**63, 10**24, 1e308, -1e308, 5e-324, "", "x" * 5000, "\x1b[2J\x07",
    "\ud800", "../../outside", "/etc/passwd", "\u202e", [], {}, [[]], {"a": {}}, "NaN", "running",
)  # fmt: skip
RAW_VALUES = ("NaN", "Infinity", "-1e999", "9" * 5000, "[" * 3000, '"\\ud800"', "nul", "")


def mutate_file(path: Path, rng: random.Random) -> str:
    """Damage one file in a random way, and return what was done."""
    kinds: list[Callable[[Path, random.Random], str]] = [_flip, _cut, _replace_by_other]
    if path.name.endswith((".json", ".jsonl")):
        kinds += [_mutate_json] * 5 + [_mutate_json_text]
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
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    documents = [json.loads(line) for line in lines if line.strip()]
    places: list[tuple[object, object]] = []
    _list_places(documents, places)
    done = []
    for _ in range(rng.randint(1, 3)):
        if places:
            holder, key = rng.choice(places)
            value = rng.choice(STRANGE_VALUES)
            holder[key] = value  # type: ignore[index]
            done.append(f"{key}={value!r:.40}")
    path.write_text("\n".join(json.dumps(each) for each in documents) + "\n")
    return ", ".join(done)


def _list_places(value: object, places: list[tuple[object, object]]) -> None:
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
    done = rng.choice((_mutate_json, _mutate_json_text))(plain, rng)
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

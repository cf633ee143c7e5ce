"""Thousands of broken scenarios: each loads, or is refused with located problems; nothing else ever
happens, and soon."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from laggard.cli.main import main
from laggard.core.yaml_source import YamlValue, parse_yaml
from laggard.scenario import files
from laggard.scenario.files import dump_yaml
from laggard.scenario.overrides import parse_file
from tests.scenario.scenario_folders import problems_of, template, write

FILES = template()
VALUES: dict[str, YamlValue] = {name: parse_yaml(text, name).value for name, text in FILES.items()}
FACTOR = int(os.environ.get("LAGGARD_EXPLORE", "1"))
"""How many times more examples than usual, new ones each time."""

Path_ = tuple[str | int, ...]

RAW = ("Input ", "Input:", "String should", "Value error", "Field required", "validation error",
       "should be", "match pattern", "dictionary", "Traceback", "pydantic")  # fmt: skip
"""Phrases of pydantic, which no user should have to read."""


def _paths(value: YamlValue, at: Path_ = ()) -> Iterator[Path_]:
    yield at
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, below in inner:
        yield from _paths(below, (*at, key))


PLACES = sorted(((name, path) for name, value in VALUES.items() for path in _paths(value)), key=str)

TOKENS = st.sampled_from(
    ["-", "- ", ":", ": ", "[", "]", "{", "}", "&a ", "*a", "!!x ", "|", ">", "'", '"', "#", "\t", "\n", "  ", "%", "@", "?", "<<: ", "---\n",
     "...", "\\", "\x00", "\x1b[31m", "\u2028", "é", "\U0001f600", "edge.*", "10ms", "0", "-1", ".nan", "1e999", "null", "true", "~", ",", "9" * 30]
)  # fmt: skip

HOSTILE: st.SearchStrategy[YamlValue] = st.one_of(
    st.sampled_from(
        [None, True, False, 0, -1, 1, 2, 3, 10**6, 2**62, -(2**62), 0.5, 1e300, -1e-300, "", " ", "0", "-1", "nan", "inf", "-inf", "1e9", "null",
         "edge", "edge.*", "*", "all", "!edge.*", "~[", "~(a+)+$", "edge.*[0]", "a" * 300, "$(id)", "; rm -rf /", "../..", "/etc/passwd", "x\x00y",
         "10ms", "10 parsecs", "0ms", "1us", "999999h", "100mbit", "0mbit", "1bit", "5%", "0%", "100%", "1GiB", "20MB/s", "1MB/s", "os:system",
         "cifar10", "image_folder", "synthetic", "transformer", "adam", "lte.csv", [], {}, [[]], [{}], {"": None}, ["edge.*"], ["edge.*", "fog.*"]]
    ),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
    st.dictionaries(st.sampled_from(["name", "hosts", "src", "dst", "cpu", "at", "for", "rate", "seed", "x"]), st.text(max_size=5), max_size=3),
)  # fmt: skip


def _put(value: YamlValue, path: Path_, change: Callable[[YamlValue], YamlValue]) -> YamlValue:
    if not path:
        return change(value)
    if isinstance(value, dict) and path[0] in value:
        return {**value, str(path[0]): _put(value[str(path[0])], path[1:], change)}
    if isinstance(value, list) and isinstance(path[0], int) and path[0] < len(value):
        at = path[0]
        return [*value[:at], _put(value[at], path[1:], change), *value[at + 1 :]]
    return value


@pytest.fixture(scope="module", autouse=True)
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One folder for all, and every text parsed once: parsing is pure, and most files of most
    examples are unchanged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "parse_file", lru_cache(maxsize=64)(parse_file))
        patch.chdir(tmp_path_factory.mktemp("scenario"))
        yield


def _judge(files: dict[str, str], *overrides: str) -> None:
    write(Path("mine"), files)
    problems = problems_of(Path("mine"), *overrides)
    assert len(problems) <= 101
    for problem in problems:
        assert problem.path
        assert problem.rule
        assert str(problem).isprintable()
        assert not any(phrase in str(problem) for phrase in RAW), problem
        # Whole files, options and text that is no YAML have no value of their own.
        if problem.line and "not YAML" not in problem.rule:
            assert problem.value, problem
            assert problem.fix, problem


def _explored(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return settings(
        max_examples=examples * FACTOR,
        deadline=None,
        derandomize=FACTOR == 1,
        suppress_health_check=list(HealthCheck),
        database=None,
    )


@_explored(250)
@given(
    name=st.sampled_from(sorted(FILES)),
    edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), TOKENS), min_size=1, max_size=4),
)
def test_edited_text(name: str, edits: list[tuple[float, int, str]]) -> None:
    text = FILES[name]
    for where, length, token in edits:
        at = int(where * len(text))
        text = text[:at] + token + text[at + length :]
    _judge(FILES | {name: text})


@_explored(400)
@given(changes=st.lists(st.tuples(st.sampled_from(PLACES), HOSTILE), min_size=1, max_size=3))
def test_changed_values(changes: list[tuple[tuple[str, Path_], YamlValue]]) -> None:
    values = dict(VALUES)
    for (name, path), new in changes:
        values[name] = _put(values[name], path, lambda _, new=new: new)  # type: ignore[misc]
    files = {
        name: FILES[name] if values[name] == VALUES[name] else _dumped(values[name])
        for name in FILES
    }
    _judge(files)


@_explored(250)
@given(
    place=st.sampled_from(PLACES),
    kind=st.sampled_from(["drop", "rename", "double", "swap", "nest"]),
    word=st.text(max_size=6),
)
def test_changed_keys(place: tuple[str, Path_], kind: str, word: str) -> None:
    name, path = place

    def change(value: YamlValue) -> YamlValue:
        if isinstance(value, dict) and value:
            first = next(iter(value))
            rest = {key: inner for key, inner in value.items() if key != first}
            renamed = {
                "drop": rest,
                "rename": {word: value[first], **rest},
                "double": {**value, word: value[first]},
            }
            return renamed.get(
                kind,
                (
                    {first: value}
                    if kind == "nest"
                    else dict(zip(value, reversed(value.values()), strict=True))
                ),
            )
        if isinstance(value, list) and value:
            return {"drop": value[1:], "double": [*value, *value], "nest": [value]}.get(
                kind, value[::-1]
            )
        return [value] if kind == "nest" else word

    changed = _put(VALUES[name], path, change)
    assume(changed != VALUES[name])
    _judge(FILES | {name: _dumped(changed)})


@_explored(300)
@given(
    place=st.sampled_from(PLACES),
    value=st.one_of(HOSTILE, st.text(max_size=20)),
    noise=st.text(max_size=3),
)
def test_overrides(place: tuple[str, Path_], value: YamlValue, noise: str) -> None:
    name, path = place
    key = ".".join(map(str, (name, *path)))
    _judge(FILES, f"{key}{noise}={value}")


@_explored(40)
@given(
    name=st.sampled_from(sorted(FILES)),
    edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), TOKENS), min_size=1, max_size=4),
)
def test_the_command_prints_nothing_but_problems(
    name: str, edits: list[tuple[float, int, str]]
) -> None:
    text = FILES[name]
    for where, length, token in edits:
        at = int(where * len(text))
        text = text[:at] + token + text[at + length :]
    write(Path("mine"), FILES | {name: text})
    result = CliRunner().invoke(main, ["check", "mine"])
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.exit_code in (0, 2)
    assert not any(phrase in result.output for phrase in RAW)
    if result.exit_code:
        for line in result.stderr.splitlines():
            assert re.match(r"mine/\w+\.yaml:\d+:\d+: .+ — .+", line), line


@pytest.mark.parametrize("files", list(itertools.combinations(sorted(FILES), 2)))
def test_any_two_files_exchanged(files: tuple[str, str]) -> None:
    one, other = files
    _judge(FILES | {one: FILES[other], other: FILES[one]})


def _dumped(value: YamlValue) -> str:
    return dump_yaml(value).decode("utf-8", "surrogatepass")


@given(
    value=st.recursive(
        HOSTILE,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
        ),
        max_leaves=6,
    )
)
@_explored(300)
def test_what_is_written_reads_back(value: YamlValue) -> None:
    assert parse_yaml(dump_yaml(value), "f").value == value

"""Files of other tools that are known but not read, each with what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from laggard.analysis.formats.trace_json.json_file import read_beginning

_RECORD = (
    "record the same steps with torch.profiler on every rank, and give the folder of its traces"
)
_CONVERT = "or convert it to a Parquet file with ByteDance's columns"
_PICKLE = b"\x80"
_PICKLE_SUFFIXES = (".pkl", ".pickle", ".pt")
_MAX_FILES = 1000


@dataclass(frozen=True)
class RefusedInput:
    """Kind of input that is known but not read.

    Attributes:
        matches: function that returns True if a file or folder is of this kind.
        problem: description of the input, and the reason.
        fix: what to give instead.
    """

    matches: Callable[[Path], bool]
    problem: str
    fix: str


def find_refused_input(path: Path) -> RefusedInput | None:
    """Return the kind of a file or folder that is known but not read, or None."""
    return next((each for each in REFUSED_INPUTS if each.matches(path)), None)


def _is_pickled_dump(path: Path) -> bool:
    """Return True for a pickled file, or for a folder that contains nothing else."""
    if not path.is_dir():
        return _is_pickle(path)
    files = sorted(path.iterdir())[:_MAX_FILES]
    return bool(files) and all(map(_is_pickle, files))


def _is_pickle(file: Path) -> bool:
    # The content is never unpickled, because that executes it.
    named = file.suffix in _PICKLE_SUFFIXES or "trace_rank_" in file.name
    return named and file.is_file() and read_beginning(file)[:1] == _PICKLE


def _is_ascend(path: Path) -> bool:
    if path.name in {"trace_view.json", "ASCEND_PROFILER_OUTPUT"} or path.name.endswith(
        "_ascend_pt"
    ):
        return True
    return path.is_dir() and any(
        (path / name).exists() for name in ("trace_view.json", "ASCEND_PROFILER_OUTPUT")
    )


def _is_nsight(path: Path) -> bool:
    return path.suffix in {".nsys-rep", ".qdrep", ".sqlite", ".qdstrm"}


def _is_deepspeed_log(path: Path) -> bool:
    if path.suffix not in {".log", ".txt", ".out"} or not path.is_file():
        return False
    beginning = read_beginning(path)
    return b"Comm. Op" in beginning and b"Message Size" in beginning


REFUSED_INPUTS = (
    RefusedInput(
        _is_pickled_dump,
        "a pickled dump, of torch's flight recorder for instance, is a program and is not opened",
        "dump JSON on every rank: open('rank0.json', 'wb').write("
        "torch._C._distributed_c10d._dump_nccl_trace_json())",
    ),
    RefusedInput(
        _is_ascend,
        "the output of Ascend's profiler is not read: its events are those of torch_npu",
        f"{_RECORD}, {_CONVERT}",
    ),
    RefusedInput(
        _is_nsight,
        "a report of Nsight Systems is not read: it has no steps, phases or ranks",
        f"{_RECORD}, {_CONVERT}",
    ),
    RefusedInput(
        _is_deepspeed_log,
        "a log of DeepSpeed's comms logger has totals only, no times of single collectives",
        _RECORD,
    ),
)

"""Import of torch.profiler traces: seconds and memory of `laggard analyze --no-report` by file size.

    python benchmarks/trace_import.py [--gigabytes 0.5 5] [--ranks 1] [--hta PYTHON]
        [--published CLONES] [--repeat 3] [--limit SECONDS] [--scratch DIR]

With `--published`, the traces are real ones from clones of public repositories
(`published_traces.py`); otherwise they are generated in the layout that torch writes, one file per
rank. `read` is the parsing of the files alone, and `analyze` is the whole command. `--hta` is an
interpreter that can import HolisticTraceAnalysis, which then analyzes the same files. The commands
take turns, and figures are medians. Memory is the largest resident set of a process, also as a
multiple of the largest file, uncompressed. A command that exceeds the limit is killed.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

OPERATIONS = 1500
"""Operations of a step's forward pass, and of its backward pass; each launches a kernel."""
OPERATION_US, KERNEL_US = 40, 36
READ = """
import sys
from pathlib import Path
from laggard.analysis.formats.kineto.trace_file import read_rank_trace
traces = [read_rank_trace(path, only_file=False) for path in sorted(Path(sys.argv[1]).iterdir())]
"""
HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
analysis.get_temporal_breakdown(visualize=False)
try:
    analysis.get_potential_stragglers()
except ValueError as error:
    print(f"no stragglers: {error}")
"""
_HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 84929347584
    }
  ],
  "distributedInfo": {"backend": "nccl", "rank": %d, "world_size": %d},
  "host_name": "node-1",
  "traceEvents": ["""
_TAIL = """
  {
    "ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0.000, "args": {"name": "python"}
  }
  ],
  "traceName": "trace.json",
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1712100000000000000
}
"""
_HOST = """
  {
    "ph": "X", "cat": "%s", "name": "%s", "pid": 1, "tid": %d,
    "ts": %.3f, "dur": %.3f,
    "args": {
      "External id": %d,"Record function id": 0, "Ev Idx": %d
    }
  },"""
_LAUNCH = """
  {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
    "ts": %.3f, "dur": 5.120,
    "args": {
      "External id": %d, "cbid": 211, "correlation": %d
    }
  },
  {
    "ph": "s", "id": %d, "pid": 1, "tid": 1, "ts": %.3f,
    "cat": "ac2g", "name": "ac2g"
  },
  {
    "ph": "X", "cat": "kernel", "name": "%s", "pid": 0, "tid": 7,
    "ts": %.3f, "dur": %.3f,
    "args": {
      "External id": %d, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": %d,
      "registers per thread": 128, "shared memory": 49152, "blocks per SM": 1.939394,
      "warps per SM": 15.515152, "grid": [256, 1, 1], "block": [256, 1, 1],
      "est. achieved occupancy %%": 24%s
    }
  },
  {
    "ph": "f", "id": %d, "pid": 0, "tid": 7, "ts": %.3f,
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  },"""
_MESSAGE = ', "In msg nelems": 4000000, "dtype": "Float", "Collective name": "allreduce"'


@dataclass(frozen=True)
class Measurement:
    """Seconds and memory of one command; `said` is the end of its output if it failed."""

    wall_s: float
    processor_s: float
    peak_bytes: int
    said: str


def write_rank(path: Path, rank: int, ranks: int, size: int) -> None:
    """Write the trace of one rank with at least `size` bytes."""
    step = 0
    with path.open("w") as file:
        written = file.write(_HEAD % (rank, ranks))
        while written < size:
            written += sum(file.write(text) for text in _generate_step(step, rank))
            step += 1
        file.write(_TAIL)


def _generate_step(step: int, rank: int) -> Iterator[str]:
    length_us = (2 * OPERATIONS + 4) * OPERATION_US + 1000
    at = 6_738_000_000.0 + step * length_us
    yield _host("user_annotation", f"ProfilerStep#{step}", 1, at, length_us - 10)
    yield _host("user_annotation", "enumerate(DataLoader)#_Iter.__next__", 1, at + 5, 100 + rank)
    at += 200
    backward = "autograd::engine::evaluate_function: AddmmBackward0"
    yield _host(
        "user_annotation", "DistributedDataParallel.forward", 1, at, OPERATIONS * OPERATION_US
    )
    for number in range(2 * OPERATIONS):
        name, thread = (f"aten::op_{number % 300}", 1) if number < OPERATIONS else (backward, 2)
        key = step * 2 * OPERATIONS + number
        yield _host("cpu_op", name, thread, at + 1, OPERATION_US - 5, key)
        yield _host("cpu_op", "aten::addmm", thread, at + 2, OPERATION_US - 8, key)
        last = number == 2 * OPERATIONS - 1
        kernel = (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            if last
            else f"void at::native::vectorized_elementwise_kernel<4, at::native::F{number % 200}>"
        )
        yield _kernel(kernel, at + 4, key, _MESSAGE if last else "")
        at += OPERATION_US


def _host(category: str, name: str, thread: int, at: float, length: float, key: int = 0) -> str:
    return _HOST % (category, name, thread, at, length, key, key)


def _kernel(name: str, at: float, key: int, message: str) -> str:
    start = at + 20
    ids = (at, key, key, key, at)
    return _LAUNCH % (*ids, name, start, KERNEL_US, key, key, message, key, start)


def measure(words: list[str], limit_s: float) -> Measurement:
    """Run a command; its resources are those of the process and of its children."""
    begin = time.monotonic()
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT)
        alarm = threading.Timer(limit_s, child.kill)
        alarm.start()
        _, status, used = os.wait4(child.pid, 0)
        alarm.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        said = output.read().decode(errors="replace")[-500:]
    return Measurement(
        time.monotonic() - begin,
        used.ru_utime + used.ru_stime,
        used.ru_maxrss * 1024,
        f"status {child.returncode}: {said}" if status else "",
    )


def generate(gigabytes: Sequence[float], ranks: int, scratch: Path) -> Iterator[Path]:
    """Write the traces of all ranks for every size, and yield their folders."""
    for size in gigabytes:
        folder = scratch / f"{ranks}x{size:g}GB"
        folder.mkdir()
        for rank in range(ranks):
            write_rank(folder / f"rank{rank}.json", rank, ranks, int(size * 1e9))
        yield folder


def measure_size(file: Path) -> int:
    """Return the bytes of a file, uncompressed."""
    if file.suffix != ".gz":
        return file.stat().st_size
    with gzip.open(file) as content:
        return sum(len(chunk) for chunk in iter(lambda: content.read(1 << 20), b""))


def report(folder: Path, hta: Path | None, limit_s: float, repeat: int) -> None:
    """Print one line per tool."""
    sizes = [measure_size(file) for file in folder.iterdir()]
    print(f"{folder.name}: {len(sizes)} x {max(sizes) / 1e6:.1f} MB", flush=True)
    tools = {
        "read": [sys.executable, "-c", READ, str(folder)],
        "analyze": [sys.executable, "-m", "laggard", "analyze", "--no-report", str(folder)],
    }
    if hta is not None:
        tools["HTA"] = [str(hta), "-c", HTA, str(folder)]
    used = [{name: measure(words, limit_s) for name, words in tools.items()} for _ in range(repeat)]
    for name in tools:
        wall_s, processor_s, peak_bytes = (
            statistics.median(getattr(each[name], key) for each in used)
            for key in ("wall_s", "processor_s", "peak_bytes")
        )
        failed = next((each[name].said for each in used if each[name].said), "")
        print(
            f"  {name}: {wall_s:.1f} s, processor {processor_s:.1f} s, memory"
            f" {peak_bytes / 2**20:.0f} MiB ({peak_bytes / max(sizes):.2f} x)"
            + (f", failed: {failed}" if failed else ""),
            flush=True,
        )


def main() -> None:
    """Print one line per trace and tool."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.5, 5.0])
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--hta", type=Path)
    parser.add_argument("--published", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--limit", type=float, default=3600.0)
    parser.add_argument("--scratch", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        folders = generate(given.gigabytes, given.ranks, Path(scratch))
        if given.published is not None:
            writer = Path(__file__).with_name("published_traces.py")
            subprocess.run([sys.executable, writer, given.published, scratch], check=True)
            folders = iter(sorted(Path(scratch).iterdir()))
        for folder in folders:
            report(folder, given.hta, given.limit, given.repeat)
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()

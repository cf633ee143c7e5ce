"""Comparison with ByteDance's StragglerAnalysis: results of three traces, and processor time.

    git clone https://github.com/ByteDance-Seed/StragglerAnalysis
    python benchmarks/bytedance_reference.py StragglerAnalysis [python]

`python` is an interpreter with their requirements (and pandas below 3). Without it their tool is
not run, and only the published results are compared.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

TRACES = ("AR", "SE", "ST")
OURS = """
import json, sys
from pathlib import Path
from laggard.analysis.formats.bytedance.parquet_file import read_operations
from laggard.analysis.replay.bytedance.slowdowns import compute_slowdowns
json.dump(compute_slowdowns(read_operations(Path(sys.argv[1]))).document(), sys.stdout)
"""


def processor_s(words: list[str], folder: Path) -> tuple[float, str]:
    """Run a command and return its processor seconds and its output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        words, check=True, capture_output=True, text=True, cwd=folder, env=environment
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def largest_error(ours: Mapping[str, float], published: Mapping[str, float]) -> float:
    """Return the largest relative error over the published values."""
    return max(abs(ours[key] / value - 1.0) for key, value in published.items())


def main() -> None:
    """Print one line per trace."""
    checkout = Path(sys.argv[1]).resolve()
    for name in TRACES:
        trace = checkout / "data" / f"trace-{name}.parquet"
        took, said = processor_s([sys.executable, "-c", OURS, str(trace)], checkout)
        ours = json.loads(said)
        published = json.loads((checkout / "data" / f"result-{name}.json").read_text())
        metric = json.loads((checkout / "data" / f"mw-{name}.json").read_text())["Mw"]
        errors = {
            "S": abs(ours["s"] / published["blocking_slowdown"] - 1.0),
            "S_t": largest_error(ours["s_t"], published["blocking_decompose_by_optype"]),
            "ranks": largest_error(ours["s_dp_rank"], published["blocking_decompose_by_dp_rank"]),
            "stages": largest_error(ours["s_stage"], published["blocking_decompose_by_stage"]),
            "steps": largest_error(ours["s_step"], published["blocking_step_slowdown"]),
            "M_W": abs(ours["m_w"] - metric),
        }
        line = f"{name}: S {ours['s']:.6f}; errors: " + ", ".join(
            f"{key} {error:.1g}" for key, error in errors.items()
        )
        print(
            f"{line}; ours {took:.1f} s"
            + (f", theirs {theirs_s(checkout, name):.1f} s" if sys.argv[2:] else "")
        )


def theirs_s(checkout: Path, name: str) -> float:
    """Return the processor seconds of their tool on one of their traces.

    M_W is computed by another program there and is not included.
    """
    with tempfile.TemporaryDirectory() as scratch:
        data = checkout / "data"
        files = [
            "--trace",
            str(data / f"trace-{name}.parquet"),
            "--metadata",
            str(data / f"meta-{name}.yaml"),
        ]
        words = [
            str(Path(sys.argv[2]).absolute()),
            "analyzer/wia.py",
            *files,
            "--dump-dir",
            scratch,
        ]
        return processor_s([*words, "--root", scratch], checkout)[0]


if __name__ == "__main__":
    main()

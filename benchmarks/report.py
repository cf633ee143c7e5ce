"""Processor time of the analysis of a run and of its report, and size of the report.

    python benchmarks/report.py [run folder]

Imports are included, and each repetition is a new process. Without a folder, the run is a
generated one of eight ranks and three hundred steps.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TIMES = 7
CODE = """
import sys, time
from pathlib import Path
from laggard.analysis.tables.load_run import load_run
from laggard.analysis.findings.analysis_result import analyze_lockstep
run = load_run(Path(sys.argv[1])); found = analyze_lockstep(run)
analyzed = time.process_time()
from laggard.analysis.report import write_report
write_report(run, found, Path(sys.argv[2]))
sys.stdout.write(f"{analyzed} {time.process_time() - analyzed}")
"""


def generated(folder: Path) -> Path:
    """Generate a run with the trace generator."""
    from laggard.analysis.evaluate.synthetic.run_generator import Injection, TraceSpec, generate_run
    from laggard.analysis.tables.write_run import write_run

    burst = Injection("compute", 2.0, 120, 165, rank=5)
    return write_run(generate_run(TraceSpec(steps=300, injections=(burst,))), folder / "run")


def main() -> None:
    """Print medians."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else generated(Path(scratch))
        pairs = []
        for _ in range(TIMES):
            words = [sys.executable, "-c", CODE, str(folder), scratch]
            done = subprocess.run(words, check=True, capture_output=True, text=True)
            pairs.append([float(word) for word in done.stdout.split()])
        size_kb = (Path(scratch) / "report.html").stat().st_size / 1e3
    analyzed, written = (statistics.median(column) for column in zip(*pairs, strict=True))
    took = (
        f"processor time: analysis {analyzed:.1f} s, report {written:.1f} s; medians of {TIMES}"
        " repetitions"
    )
    print(f"{took}; report.html {size_kb:.0f} kB")


if __name__ == "__main__":
    main()

"""A campaign of 48 cells, killed with -9 at random moments and with its disk full twice.

    python benchmarks/campaign_kills.py [KILLS] [FOLDER]

Every start of the campaign is killed after a random time, until KILLS (20 by default) starts were.
Twice, its next start finds the disk full: a file takes all the space of the runs' file system, which
is a tmpfs of its own (this needs root). Then the campaign goes on to its end. At the end every cell
must have exactly one run that is done, and no run that ended as done may be missing from the table.
A second start of the running campaign must be refused, and name the process that holds it.
"""

from __future__ import annotations

import csv
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from laggard.run_folder.store import list_runs

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.command_line import SMALL

CELLS = 48
KILLS = 20
LONGEST_S = 40.0
SPACE_MIB = 512
FILE = """
scenario: small
repeats: 6
order: paired
retries: 2
vary:
  workload.strategy: [allreduce, parameter_server]
  workload.batch_size: [48, 96]
  network.networks.0.rate: [20mbit, 50mbit]
"""


@contextmanager
def mount_small_disk(folder: Path) -> Iterator[Path]:
    """Mount a small file system, and unmount it at the end."""
    folder.mkdir()
    size = f"size={SPACE_MIB}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def start(folder: Path, runs: Path) -> subprocess.Popen[str]:
    """Start the campaign."""
    command = [sys.executable, "-m", "laggard", "campaign", str(folder / "kills.yaml")]
    return subprocess.Popen(
        [*command, "--runs", str(runs), "--fidelity", "record"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def kill_often(folder: Path, runs: Path, kills: int, chance: random.Random) -> None:
    """Start the campaign and kill it, `kills` times; twice, fill its disk in between."""
    for number in range(kills):
        process = start(folder, runs)
        try:
            out, _ = process.communicate(timeout=chance.uniform(0.5, LONGEST_S))
            print(
                f"start {number}: ended by itself with status {process.returncode}, {out.strip()}"
            )
        except subprocess.TimeoutExpired:
            if number == kills // 2:
                print("second start at once:", describe_second_start(folder, runs))
            process.send_signal(signal.SIGKILL)
            process.communicate()
        if number in (kills // 3, 2 * kills // 3):
            print("disk full:", describe_full_disk(folder, runs))


def describe_second_start(folder: Path, runs: Path) -> str:
    """Start the campaign a second time, and return what it says."""
    second = start(folder, runs)
    out, _ = second.communicate()
    return f"status {second.returncode}, {out.strip()}"


def describe_full_disk(folder: Path, runs: Path) -> str:
    """Fill the disk, start the campaign, free the disk, and return what it says."""
    filler = runs / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass
    process = start(folder, runs)
    out, _ = process.communicate()
    filler.unlink()
    return f"status {process.returncode}, {out.strip().splitlines()[-1]}"


def judge(runs: Path) -> None:
    """Print how many cells were run, lost and repeated."""
    with (runs / "campaigns/kills/results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    faithful = Counter(row["cell"] for row in rows if row["status"] == "done")
    told = {row["run"] for row in rows}
    ended = {record.id for record, _ in list_runs(runs) if record.status == "done"}
    print(f"cells done {len(faithful)} of {CELLS}")
    print(f"done runs lost {len(ended - told)}")
    print(f"cells done twice {sum(count > 1 for count in faithful.values())}")
    print(f"attempts by status {dict(Counter(row['status'] for row in rows))}")


def main() -> None:
    """Kill the campaign often, let it end, and judge its table."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else KILLS
    parent = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(dir=parent) as name:
        folder = Path(name)
        (folder / "small").mkdir()
        for file, text in SMALL.items():
            (folder / "small" / file).write_text(text.replace("steps: 60", "steps: 8"))
        (folder / "kills.yaml").write_text(FILE)
        with mount_small_disk(folder / "runs") as runs:
            began_s = time.monotonic()
            kill_often(folder, runs, kills, random.Random(33))
            for _ in range(3):
                process = start(folder, runs)
                out, _ = process.communicate()
                print(out.strip().splitlines()[-1])
                if process.returncode == 0:
                    break
            print(f"{(time.monotonic() - began_s) / 60:.1f} minutes")
            judge(runs)


if __name__ == "__main__":
    main()

"""Rows of a stream whose writer was killed: none is lost, and none appears twice."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from laggard.workloads.plan import ENVIRONMENT
from laggard.workloads.tracing.pending_rows import CAPACITY
from laggard.workloads.tracing.row_types import STEP_ROW
from laggard.workloads.tracing.stream import RowStream, read_rows

ROWS = 7
KILL_AT_EVERY_LINE = """
import json, os, signal, sys
from pathlib import Path
from laggard.workloads.tracing.row_types import STEP_ROW
from laggard.workloads.tracing.stream import RowStream

def write(path, kill_at, said):
    lines = 0
    def trace(frame, event, argument):
        nonlocal lines
        if "tracing" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        if lines == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)
    stream = RowStream(path, STEP_ROW)
    for step in range(7):
        stream.append((step, 0, step * 10, step * 10 + 9, 0.5, 4, 8, 0, 0, 0, step, step + 1, -1))
        os.write(said, b".")
        if step % 3 == 2:
            stream.flush()
    stream.close()
    os._exit(0)

ended, line = [], 0
while not ended or ended[-1][1]:
    line += 1
    heard, said = os.pipe()
    if (child := os.fork()) == 0:
        write(Path(sys.argv[1]) / str(line), line, said)
    os.close(said)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ended.append((line, status, len(os.read(heard, 100))))
    os.close(heard)
print(json.dumps(ended))
"""


@pytest.mark.long
def test_a_writer_killed_at_any_line_loses_no_row_and_repeats_none(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILL_AT_EVERY_LINE, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **ENVIRONMENT},
    )
    ended = json.loads(done.stdout)
    for line, status, appended in ended:
        steps = read_rows(tmp_path / str(line), STEP_ROW)["step"].tolist()
        # The last row may be whole although its writer could not say so any more.
        assert steps in (list(range(appended)), list(range(appended + 1))), line
        assert status in (0, -signal.SIGKILL)
    assert ended[-1][1:] == [0, ROWS]
    assert len(ended) > 100


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from laggard.workloads.tracing.row_types import STEP_ROW
from laggard.workloads.tracing.stream import RowStream

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
stream, limit = RowStream(Path(sys.argv[1]), STEP_ROW), int(sys.argv[2])
for step in range(12):
    stream.append((step, 0, step * 10, step * 10 + 9, 0.5, 4, 8, 0, 0, 0, step, step + 1, -1))
    if step % 3 == 2:
        # The file may grow up to this size only, later to any size.
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit if step == 5 else -1, -1))
        try:
            stream.flush()
        except OSError as error:
            print(error.errno)
try:
    stream.close()
except OSError as error:
    print(error.errno)
"""


@pytest.mark.parametrize("part", range(10))
def test_a_write_that_fails_within_a_batch_loses_no_row(part: int, tmp_path: Path) -> None:
    path = tmp_path / "s"
    whole = RowStream(tmp_path / "whole", STEP_ROW)
    sizes = [(tmp_path / "whole").stat().st_size]
    for step in range(6):
        whole.append((step, 0, step * 10, step * 10 + 9, 0.5, 4, 8, 0, 0, 0, step, step + 1, -1))
        if step % 3 == 2:
            whole.flush()
            sizes.append((tmp_path / "whole").stat().st_size)
    whole.close()
    limit = sizes[1] + (sizes[2] - sizes[1]) * part // 10
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path), str(limit)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **ENVIRONMENT},
    )
    assert done.stdout.split() == [str(errno.EFBIG)]
    assert read_rows(path, STEP_ROW)["step"].tolist() == list(range(12))


@pytest.mark.parametrize(
    "content",
    [
        b"x",
        b"\xff" * (16 + CAPACITY * STEP_ROW.itemsize),
        np.array([0, CAPACITY + 1]).tobytes() + bytes(CAPACITY * STEP_ROW.itemsize),
        bytes(17 + CAPACITY * STEP_ROW.itemsize),
    ],
    ids=["short", "negative", "too many", "long"],
)
def test_damaged_pending_rows_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s.pending").write_bytes(content)
    with pytest.raises(ValueError, match=r"s\.pending"):
        read_rows(tmp_path / "s", STEP_ROW)

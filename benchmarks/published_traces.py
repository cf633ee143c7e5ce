"""Published traces, read from clones of their repositories, which need no work tree.

The folder has one clone per repository, whose name ends in that of the repository; a clone may also
be the folder `repo` in it. A case whose files are not in the clones is left out, for example if
large files were not fetched.
"""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

Files = Mapping[str, bytes]
HTA = "HolisticTraceAnalysis/tests/data"
JOBS = {
    "sampled": [f"{HTA}/trace_filter/sampled_rank-{rank}.json.gz" for rank in range(2)],
    "vision_transformer": [f"{HTA}/vision_transformer/rank-{rank}.json.gz" for rank in range(8)],
    "llama_70b_fsdp": [
        f"TraceLens/tests/traces/mi300/llama_70b_fsdp/rank{rank}_trace_no_pyfn.json.gz"
        for rank in range(8)
    ],
}
"""Traces of several ranks of one job, by name."""


def write_jobs(clones: Path, scratch: Path) -> Iterator[Path]:
    """Write every job of at least two ranks to a folder of its own, and yield the folders."""
    yield from _write("dlrm", _unpack_dlrm(clones), scratch)
    for name, paths in JOBS.items():
        yield from _write(name, _read_files(clones, paths), scratch)


def write_timed(clones: Path, scratch: Path) -> Iterator[Path]:
    """Write the traces whose import is timed: one large rank, eight copies of one, and DLRM."""
    yield from _write(
        "mtia", _read_files(clones, [f"{HTA}/mtia_trace_single_rank/mtia_rank_0.json.gz"]), scratch
    )
    read = _read_files(clones, [f"{HTA}/df_index_resolver/df_index_resolver.json.gz"])
    yield from _write("eight_ranks", _copy_as_ranks(read), scratch)
    yield from _write("dlrm", _unpack_dlrm(clones), scratch)


def write_bytedance(clones: Path, scratch: Path) -> Iterator[Path]:
    """Write the three traces of ByteDance's StragglerAnalysis, and yield their files."""
    for name in ("AR", "SE", "ST"):
        files = [f"StragglerAnalysis/data/{kind}-{name}" for kind in ("trace", "result")]
        read = _read_files(clones, [f"{files[0]}.parquet", f"{files[1]}.json"])
        for folder in _write(name, read, scratch):
            yield folder / f"trace-{name}.parquet"


def _write(name: str, files: Files, scratch: Path) -> Iterator[Path]:
    folder = scratch / name
    if not files:
        print(f"{name}: not in the clones", flush=True)
        return
    folder.mkdir()
    for file, content in files.items():
        (folder / file).write_bytes(content)
    yield folder


def _read_files(clones: Path, paths: list[str]) -> Files:
    """Return files of the newest commits by name, or nothing if one of them is missing."""
    found: dict[str, bytes] = {}
    for path in paths:
        repository, inner = path.split("/", 1)
        for clone in sorted(clones.glob(f"*{repository}")):
            git = clone / "repo" if (clone / "repo").is_dir() else clone
            words = ["git", "-C", str(git), "cat-file", "blob", f"HEAD:{inner}"]
            done = subprocess.run(words, capture_output=True, check=False)
            if done.returncode == 0:
                found[Path(path).name] = done.stdout
    return found if len(found) == len(paths) else {}


def _unpack_dlrm(clones: Path) -> Files:
    """Return the trace of a recommendation model (DLRM): eight ranks, one step."""
    name = "dlrm_kineto.tar.gz"
    packed = _read_files(clones, [f"param/et_replay/tests/inputs/{name}"])
    if not packed:
        return {}
    with tarfile.open(fileobj=io.BytesIO(packed[name])) as archive:
        contents = {Path(each.name).name: archive.extractfile(each) for each in archive}
        # macOS adds files that begin with a dot.
        return {
            name: content.read()
            for name, content in contents.items()
            if content is not None and not name.startswith(".")
        }


def _copy_as_ranks(files: Files) -> Files:
    """Return eight copies of one rank's trace, numbered as the ranks of one job."""
    own = b'"rank": 1, "world_size": 2'
    return {
        f"rank{rank}.json.gz": gzip.compress(
            gzip.decompress(content).replace(own, b'"rank": %d, "world_size": 8' % rank, 1)
        )
        for content in files.values()
        for rank in range(8)
    }


if __name__ == "__main__":
    # A process of its own: a child's memory counts as at least that of its parent.
    list(write_timed(Path(sys.argv[1]), Path(sys.argv[2])))

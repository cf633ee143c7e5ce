"""Wheel of Laggard itself, packed from the running files.

A regular build would need a build tool and a copy of the tree. A wheel is only a zip file with a
list of its files. Editable checkouts and installed packages give the same bytes for the same
files, so nodes are prepared again only after a change.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import zipfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import laggard

# Earliest time that a zip file can store; a constant time gives the same bytes on every machine.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_WHEEL = "Wheel-Version: 1.0\nGenerator: laggard\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def build_own_wheel(cache: Path) -> Path:
    """Return the wheel of the running Laggard, in a folder named after its content.

    Args:
        cache: parent of such folders; the wheel is written unless it exists there
    """
    version = metadata.version("laggard")
    data = pack_wheel(Path(laggard.__file__).parent, version)
    folder = cache / hashlib.sha256(data).hexdigest()[:16]
    path = folder / f"laggard-{version}-py3-none-any.whl"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Concurrent runs may pack the same wheel; none may read a partly written file.
        part = folder / f".{os.getpid()}.part"
        part.write_bytes(data)
        part.replace(path)
    return path


def pack_wheel(package: Path, version: str, requires: Sequence[str] = ()) -> bytes:
    """Pack all files of a package into a wheel; the same files give the same bytes.

    Args:
        package: folder of the package; linked folders are packed like their targets
        version: version of the distribution, which has the name of the package
        requires: requirements to write into the metadata; empty if the caller installs them itself
    """
    info = f"{package.name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    about = f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {version}\n{needs}"
    files = {
        f"{package.name}/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in _list_package_files(package)
    }
    files |= {f"{info}/METADATA": about.encode(), f"{info}/WHEEL": _WHEEL.encode()}
    record = [
        f"{name},sha256={_format_digest(data)},{len(data)}" for name, data in sorted(files.items())
    ]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _list_package_files(package: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(package, followlinks=True):
        folders[:] = [
            name for name in folders if name != "__pycache__" and not name.startswith(".")
        ]
        yield from (
            Path(folder) / name
            for name in names
            if not name.startswith(".") and not name.endswith(".pyc")
        )


def _format_digest(data: bytes) -> str:
    """Format a digest as RECORD requires (PEP 376 and 427)."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode("ascii")

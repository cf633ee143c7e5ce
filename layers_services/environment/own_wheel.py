"""Laggard as a wheel, made from the files that are running.

Building one would need a build tool and a copy of the tree; a wheel is a zip file with a list.
Editable checkouts and installed packages give the same bytes for the same files, so nodes are
prepared anew only when something has changed.
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

_EPOCH = (1980, 1, 1, 0, 0, 0)
_WHEEL = "Wheel-Version: 1.0\nGenerator: laggard\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def build_own_wheel(cache: Path) -> Path:
    """The wheel of the running Laggard, in a folder that its content names.

    Args:
        cache: where such folders are; the wheel is written unless it is there.
    """
    version = metadata.version("laggard")
    data = pack_wheel(Path(laggard.__file__).parent, version)
    folder = cache / hashlib.sha256(data).hexdigest()[:16]
    path = folder / f"laggard-{version}-py3-none-any.whl"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{os.getpid()}.part"
        part.write_bytes(data)
        part.replace(path)
    return path


def pack_wheel(package: Path, version: str, requires: Sequence[str] = ()) -> bytes:
    """A wheel with all files of a package, the same bytes for the same files.

    Args:
        package: its folder; folders that are links count as what they lead to.
        version: of the distribution, which is named like the package.
        requires: what its metadata shall say that it needs; nothing where the caller sees to that.
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
    """As RECORD writes it (PEP 376 and 427)."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode("ascii")

"""Small wheels for tests: packages written on the spot, and installed ones packed again, so that no
index is asked."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from laggard.layers_services.environment.install_on_node import Request, WheelFile
from laggard.layers_services.environment.own_wheel import pack_wheel
from laggard.layers_services.environment.resolve import find_uv

PURE = "py3-none-any"


def write_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    requires: tuple[str, ...] = (),
    tag: str = PURE,
    files: Mapping[str, str] | None = None,
) -> Path:
    """A wheel of a package `name` with `__version__`, and more files at the archive's top; those in
    `bin/` can be executed."""
    package = folder / "sources" / f"{name}-{version}" / name
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(f'__version__ = "{version}"\n')
    path = folder / f"{name}-{version}-{tag}.whl"
    path.write_bytes(pack_wheel(package, version, requires))
    with zipfile.ZipFile(path, "a") as archive:
        for inner, text in (files or {}).items():
            info = zipfile.ZipInfo(inner)
            info.external_attr = (0o755 if "/bin/" in inner else 0o644) << 16
            archive.writestr(info, text)
    return path


def pack_installed(folder: Path, name: str, tag: str = PURE) -> Path:
    """The wheel of an installed distribution, as far as its files lie in site-packages."""
    distribution = metadata.distribution(name)
    path = folder / f"{name}-{distribution.version}-{tag}.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in distribution.files or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                archive.write(str(file.locate()), str(file))
    return path


def write_uv_wheel(folder: Path) -> Path:
    """The wheel of this machine's uv, as far as the program goes."""
    version = metadata.version("uv")
    path = write_wheel(folder, "uv", version)
    with zipfile.ZipFile(path, "a") as archive:
        archive.write(find_uv(), f"uv-{version}.data/scripts/uv")
    return path


def describe(path: Path) -> WheelFile:
    """A wheel as a request names it."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"name": path.name, "size": path.stat().st_size, "sha256": digest}


def request_for(store: Path, base: Path, *wheels: Path) -> Request:
    """To install wheels that lie in a store."""
    return {
        "environment": "e1",
        "wheels": [describe(path) for path in wheels],
        "uv": describe(write_uv_wheel(store)),
        "stores": [str(store)],
        "base": str(base),
        "unpacked_bytes": 1000,
    }

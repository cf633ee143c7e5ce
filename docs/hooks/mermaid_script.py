"""Mermaid's script, which draws the diagrams in the reader's browser.

The site must open without a network, so it carries the script. It is fetched once from the npm
registry and compared with its published checksum.
"""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import urllib.request
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

VERSION = "11.6.0"
SHA512 = "PE8hGUy1LDlWIHWBP05SFdqUHGmRcCcK4IzpOKPE35eOw+G9zZgcnMpyunJVUEOgb//KBORPjysKndw8bFLuRg=="  # `npm view mermaid@VERSION dist.integrity`
ADDRESS = f"https://registry.npmjs.org/mermaid/-/mermaid-{VERSION}.tgz"
CACHE = Path(__file__).resolve().parents[2] / "build" / f"mermaid-{VERSION}.min.js"
_MEMBER = "package/dist/mermaid.min.js"
_TIMEOUT_S = 60.0


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Load the script in every page; Material asks a content delivery network otherwise."""
    config.extra_javascript.append("assets/mermaid.min.js")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the script, from the cache if it is there."""
    if not CACHE.is_file():
        CACHE.parent.mkdir(parents=True, exist_ok=True)
        CACHE.write_bytes(_fetch_script())
    script = CACHE.read_text(encoding="utf-8")
    files.append(File.generated(config, "assets/mermaid.min.js", content=script))
    return files


def _fetch_script() -> bytes:
    """Fetch the package and return its script.

    Raises:
        PluginError: the registry cannot be reached, or the package is not the published one.
    """
    try:
        with urllib.request.urlopen(ADDRESS, timeout=_TIMEOUT_S) as answer:
            package = answer.read()
    except OSError as error:
        message = f"{ADDRESS} cannot be fetched: {error}. Save its {_MEMBER} as {CACHE}."
        raise PluginError(message) from error
    digest = base64.b64encode(hashlib.sha512(package).digest()).decode()
    if digest != SHA512:
        raise PluginError(f"{ADDRESS} has SHA-512 {digest}, expected {SHA512}.")
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        member = archive.extractfile(_MEMBER)
        if member is None:
            raise PluginError(f"{ADDRESS} has no {_MEMBER}.")
        return member.read()

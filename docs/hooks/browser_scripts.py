"""Scripts that the reader's browser needs: Mermaid for diagrams, and a shim for the search.

The site must open without a network, so it carries the scripts. They are fetched once from the npm
registry and compared with their published checksums.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tarfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

CACHE = Path(__file__).resolve().parents[2] / ".cache/scripts"
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Script:
    """A script inside a package of the npm registry.

    Attributes:
        package: name of the package.
        version: version of the package.
        sha512: checksum of the package, as `npm view PACKAGE@VERSION dist.integrity` prints it.
        member: path of the script inside the package.
    """

    package: str
    version: str
    sha512: str
    member: str

    @property
    def address(self) -> str:
        """Path of the script in the site."""
        return f"assets/{self.package}.js"

    @property
    def url(self) -> str:
        """Address of the package in the registry."""
        name = f"{self.package}-{self.version}.tgz"
        return f"https://registry.npmjs.org/{self.package}/-/{name}"


MERMAID = Script(
    "mermaid",
    "11.6.0",
    "PE8hGUy1LDlWIHWBP05SFdqUHGmRcCcK4IzpOKPE35eOw+G9zZgcnMpyunJVUEOgb//KBORPjysKndw8bFLuRg==",
    "package/dist/mermaid.min.js",
)
# Browsers start no worker for a page that was opened from a folder; the search needs one.
SEARCH_SHIM = Script(
    "iframe-worker",
    "1.0.4",
    "roeaaI+Lg1LJNfgpCjoRe/+WzEjy9+Z08LoEvu85MCPbBjwm+qXz8Ag5U05lHa6V1CysZyGzE0SOkAtSUA5q7Q==",
    "package/shim/index.js",
)
_SHIM_URL = "https://unpkg.com/iframe-worker/shim"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Load Mermaid in every page; Material asks a content delivery network otherwise."""
    config.extra_javascript.append(MERMAID.address)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the scripts, from the cache if they are there."""
    CACHE.mkdir(parents=True, exist_ok=True)
    for script in (MERMAID, SEARCH_SHIM):
        cached = CACHE / f"{script.package}-{script.version}.js"
        if not cached.is_file():
            cached.write_bytes(_fetch_script(script, cached))
        content = cached.read_text(encoding="utf-8")
        files.append(File.generated(config, script.address, content=content))
    return files


def on_post_page(output: str, *, page: Page, **_: object) -> str:
    """Let a page load the shim from the site."""
    relative = os.path.relpath(SEARCH_SHIM.address, PurePosixPath(page.file.dest_uri).parent)
    return output.replace(_SHIM_URL, relative)


def on_post_template(output_content: str, *, template_name: str, **_: object) -> str:
    """Let the page for missing addresses load the shim from the site."""
    if not template_name.endswith(".html"):
        return output_content
    return output_content.replace(_SHIM_URL, SEARCH_SHIM.address)


def _fetch_script(script: Script, cached: Path) -> bytes:
    """Fetch a package and return its script.

    Raises:
        PluginError: the registry cannot be reached, or the package is not the published one.
    """
    try:
        with urllib.request.urlopen(script.url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - https alone
            package = answer.read()
    except OSError as error:
        message = f"{script.url} cannot be fetched: {error}. Save its {script.member} as {cached}."
        raise PluginError(message) from error
    digest = base64.b64encode(hashlib.sha512(package).digest()).decode()
    if digest != script.sha512:
        raise PluginError(f"{script.url} has SHA-512 {digest}, expected {script.sha512}.")
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        member = archive.extractfile(script.member)
        if member is None:
            raise PluginError(f"{script.url} has no {script.member}.")
        return member.read()

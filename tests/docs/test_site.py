"""The documentation site: it builds without a warning, every link leads somewhere, and a page loads
nothing from the network."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[2]


@dataclass
class Page(HTMLParser):
    """Links, anchors and loaded resources of one page."""

    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors.update(value for name in ("id", "name") if (value := values.get(name)))
        if tag == "a" and (href := values.get("href")):
            self.links.append(href)
        if tag in {"script", "img", "iframe"} and (source := values.get("src")):
            self.loaded.append(source)
        if tag == "link" and values.get("rel") == "stylesheet" and (href := values.get("href")):
            self.loaded.append(href)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site in a folder of its own."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    found = {}
    for path in site.rglob("*.html"):
        page = Page()
        page.feed(path.read_text(encoding="utf-8"))
        found[path] = page
    return found


def test_every_link_leads_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links are those of a server's root
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                broken.append(f"{path.relative_to(site)}: {link}")
            elif parts.fragment and target.suffix == ".html":
                anchors = pages[target].anchors
                if unquote(parts.fragment) not in anchors:
                    broken.append(f"{path.relative_to(site)}: {link} has no such anchor")
    assert broken == []


def test_no_page_loads_anything_from_the_network(pages: dict[Path, Page]) -> None:
    loaded = {source for page in pages.values() for source in page.loaded}
    assert loaded
    assert [source for source in loaded if urlsplit(source).netloc] == []


def test_there_is_a_page_for_every_command_and_scenario_file(site: Path) -> None:
    from laggard.cli.main import main
    from laggard.scenario.json_schemas import MODELS

    commands = (site / "reference/commands.html").read_text(encoding="utf-8")
    assert all(f'id="{name}"' in commands for name in main.commands)
    assert all((site / f"reference/{name}.html").is_file() for name in MODELS)

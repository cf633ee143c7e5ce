"""Pages of the site that stand elsewhere in the repository, and links between all pages.

Links in Markdown files are relative paths inside the repository, so that they also work there. This
hook translates each into the site's address of the same file. A link to a file that is no page, such
as a module, becomes plain text.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parents[2]
log = logging.getLogger("mkdocs.hooks.repository_pages")

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)


def list_outside_pages() -> dict[str, str]:
    """Map files of the repository outside `docs/` to their address in the site."""
    pages = {
        "README.md": "index.md",
        "ARCHITECTURE.md": "architecture.md",
        "CONTRIBUTING.md": "contributing.md",
        "CHANGELOG.md": "changelog.md",
    }
    for path in sorted((REPOSITORY / "benchmarks").glob("*.md")):
        name = "index" if path.stem == "README" else path.stem
        pages[f"benchmarks/{path.name}"] = f"benchmarks/{name}.md"
    for path in sorted((REPOSITORY / "experiments").glob("*/README.md")):
        pages[f"experiments/{path.parent.name}/README.md"] = f"scenarios/{path.parent.name}.md"
    return pages


def _format_scenario_index() -> str:
    """Format the page that lists all scenarios with the first sentence of each."""
    rows = []
    for path in sorted((REPOSITORY / "experiments").glob("*/README.md")):
        paragraphs = path.read_text(encoding="utf-8").split("\n\n")
        prose = next(text for text in paragraphs[1:] if not text.startswith(("!", "#")))
        sentence = " ".join(prose.split()).partition(". ")[0].rstrip(".:")
        sentence = _LINK.sub(lambda match: match["text"], sentence)
        rows.append(f"| [{path.parent.name}](scenarios/{path.parent.name}.md) | {sentence}. |")
    head = "# Scenarios\n\nFolders of `experiments/` that you can run as they are.\n\n"
    return head + "\n".join(["| folder | content |", "|---|---|", *rows]) + "\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that stand outside `docs/`."""
    for source, address in list_outside_pages().items():
        text = (REPOSITORY / source).read_text(encoding="utf-8")
        files.append(File.generated(config, address, content=text))
    files.append(File.generated(config, "scenarios.md", content=_format_scenario_index()))
    return files


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: object) -> str:
    """Translate the links of one page from the repository's paths to the site's."""
    sources = {address: source for source, address in list_outside_pages().items()}
    address = page.file.src_uri
    if address not in sources and page.file.generated_by is not None:
        return markdown  # written with the site's own addresses
    source = sources.get(address, f"docs/{address}")
    parts = _FENCE.split(markdown)
    return "".join(
        part if part.startswith("```") else _translate_links(part, source, address, files)
        for part in parts
    )


def _translate_links(text: str, source: str, address: str, files: Files) -> str:
    """Translate every link outside code blocks.

    Args:
        text: Markdown.
        source: path of the page's file in the repository.
        address: path of the page in the site's sources.
        files: all files of the site.
    """
    pages = list_outside_pages()

    def translate(match: re.Match[str]) -> str:
        target, _, anchor = match["target"].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        path = os.path.normpath(PurePosixPath(source).parent / target)
        if (REPOSITORY / path / "README.md").is_file():
            path = f"{path}/README.md"
        goal = pages.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(goal) is None:
            if not (REPOSITORY / path).exists():
                log.warning("%s links to %s, which does not exist", source, path)
            return match["text"]
        relative = os.path.relpath(goal, PurePosixPath(address).parent)
        suffix = f"#{anchor}" if anchor else ""
        return f"{match['image']}[{match['text']}]({relative}{suffix})"

    return _LINK.sub(translate, text)

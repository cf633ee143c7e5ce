"""The report in a real browser, as wide as a phone and as a desk: nothing sticks out, every figure loads, no complaint."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from laggard.analysis.findings import Analysis
from laggard.analysis.load import Run
from laggard.analysis.report import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    "--enable-logging=stderr",
)
PROBE = """
<script>
addEventListener("load", () => {
  const wide = document.documentElement.clientWidth;
  const out = [...document.querySelectorAll("body *")].filter(e => {
    if (e.closest(".scroll table, .skip, .cards thead")) return false;
    const box = e.getBoundingClientRect();
    return box.width > 0 && (box.right > wide + 1 || box.left < -1);
  });
  parent.postMessage(JSON.stringify({
    width: wide,
    scroll: document.documentElement.scrollWidth,
    out: out.slice(0, 5).map(e => e.tagName + "." + e.className),
    images: [...document.images].filter(i => i.naturalWidth > 0).length,
    narrow: [...document.images].filter(i => i.currentSrc !== i.src).length,
    small: [...document.querySelectorAll("body *")].filter(e => parseFloat(getComputedStyle(e).fontSize) < 12).length,
  }), "*");
});
</script>
"""

FRAME = """<!DOCTYPE html><html lang="en"><title>frame</title><body>
<script>addEventListener("message", event => {{ document.body.dataset.probe = event.data; }});</script>
<iframe src="{page}" style="border:0;width:{width}px;height:900px"></iframe></body></html>
"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine (Debian: apt install chromium)"),
]


def open_page(page: Path, width: int, folder: Path) -> tuple[dict[str, object], str]:
    """What the probe saw, and what the browser's console said.

    The page sits in a frame of the width, since a browser window is never narrower than 500 pixels.
    """
    frame = page.with_name("frame.html")
    frame.write_text(FRAME.format(page=page.name, width=width), encoding="utf-8")
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        *FLAGS,
        f"--user-data-dir={folder / 'profile'}",
        "--window-size=1400,1000",
        "--virtual-time-budget=5000",
    ]
    done = subprocess.run(
        [*command, "--dump-dom", frame.as_uri()], check=True, capture_output=True, text=True, timeout=120
    )
    found = re.search(r'data-probe="([^"]*)"', done.stdout)
    assert found is not None, done.stdout[:500]
    console = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    return json.loads(unescape(found[1])), console


def probed(page: Path, name: str) -> Path:
    """A copy whose policy lets the probe run; nothing else differs."""
    source = page.read_text(encoding="utf-8")
    policy = re.search(r'<meta http-equiv="Content-Security-Policy"[^>]*>', source)
    assert policy is not None
    copy = page.with_name(name)
    copy.write_text(source.replace(policy[0], "").replace("</body>", PROBE + "</body>"), encoding="utf-8")
    return copy


@pytest.fixture(scope="module")
def page(quickstart_run: Run, quickstart_analysis: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(quickstart_run, quickstart_analysis, tmp_path_factory.mktemp("report"))


@pytest.mark.parametrize("width", [360, 390, 768, 1280])
def test_it_fits(width: int, page: Path, tmp_path: Path) -> None:
    seen, console = open_page(probed(page, "probed.html"), width, tmp_path)
    assert seen["width"] == width
    assert seen["scroll"] == width
    assert seen["out"] == []
    assert seen["images"] == 5
    assert seen["narrow"] == (5 if width < 640 else 0)
    assert seen["small"] == 0
    assert console == ""


def test_long_and_hostile_names_fit_a_phone(quickstart_run: Run, quickstart_analysis: Analysis, tmp_path: Path) -> None:
    hosts = tuple(replace(h, host="x" * 120 + f"<b>{h.rank}", tier="t" * 60) for h in quickstart_run.hosts)
    findings = tuple(f.model_copy(update={"host": hosts[4].host}) for f in quickstart_analysis.findings)
    run = replace(quickstart_run, hosts=hosts)
    page = write_report(run, replace(quickstart_analysis, hosts=hosts, findings=findings), tmp_path)
    seen, _ = open_page(probed(page, "probed.html"), 390, tmp_path)
    assert seen["scroll"] == 390
    assert seen["out"] == []


def test_its_own_policy_stops_nothing_of_it(page: Path, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr

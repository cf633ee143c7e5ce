"""The report in a real browser, as wide as a phone and as a desk: nothing sticks out, every figure
loads, no complaint."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from laggard.analysis import report
from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.report import write_report
from laggard.analysis.tables.load_run import RunData

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
PATIENCE_S = 120.0
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
    timeline: document.querySelector(".timeline canvas").getBoundingClientRect().width,
    pictures: [...document.querySelectorAll("picture")].filter(e => e.getBoundingClientRect().height > 0).length,
    small: [...document.querySelectorAll("body *")].filter(e => parseFloat(getComputedStyle(e).fontSize) < 12).length,
  }), "*");
});
</script>
"""

USE = """
<script>
// In the next frame, when the page has drawn the timeline: before, its context has no font yet.
addEventListener("load", () => requestAnimationFrame(() => {
  const costs = {}, shown = {};
  const table = document.querySelector("#stragglers ~ .scroll table");
  const header = [...table.tHead.rows[0].cells].find(e => e.textContent.startsWith("Cost"));
  const column = () => [...table.tBodies[0].rows].map(row => row.cells[header.cellIndex].textContent.trim());
  costs["as written"] = column();
  for (let times = 0; times < 3; times++) {
    header.firstElementChild.click();
    costs[header.getAttribute("aria-sort")] = column();
  }
  const root = document.querySelector(".timeline"), canvas = root.querySelector("canvas");
  const said = () => root.querySelector("output").value;
  const place = () => canvas.getBoundingClientRect();
  const labels = JSON.parse(root.dataset.timeline).rows;
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = canvas.getContext("2d").font;
  const left = Math.ceil(Math.max(...labels.map(e => pen.measureText(e).width))) + 10;
  const at = part => place().left + left + part * (place().width - left - 1);
  const mouse = (type, part, y, id = 1) => canvas.dispatchEvent(new PointerEvent(type,
    { clientX: at(part), clientY: place().top + y, pointerId: id, bubbles: true, pointerType: id > 1 ? "touch" : "mouse" }));
  const wheel = () => canvas.dispatchEvent(new WheelEvent("wheel",
    { deltaY: -300, clientX: at(.5), clientY: place().top + 80, cancelable: true, bubbles: true }));
  const key = name => canvas.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
  const press = name => root.querySelector(`[data-do=${name}]`).click();
  const after = (name, act) => { press("whole"); act(); shown[name] = said(); };
  after("whole", () => {});
  after("button", () => press("in"));
  after("key", () => key("+"));
  after("wheel, not chosen", wheel);
  canvas.focus();
  after("wheel", wheel);
  after("pinch", () => {
    mouse("pointerdown", .4, 80, 2); mouse("pointerdown", .6, 80, 3);
    mouse("pointermove", .7, 80, 3); mouse("pointermove", .3, 80, 2);
    mouse("pointerup", .3, 80, 2); mouse("pointerup", .7, 80, 3);
  });
  after("strip", () => { mouse("pointerdown", .2, 5); mouse("pointermove", .4, 5); mouse("pointerup", .4, 5); });
  after("drag", () => { press("in"); mouse("pointerdown", .1, 80); mouse("pointermove", .9, 80); mouse("pointerup", .9, 80); });
  after("later", () => { press("in"); press("later"); });
  after("reset", () => { key("+"); key("ArrowLeft"); key("Home"); });
  press("in");
  mouse("pointermove", .5, 66);
  const tip = [...root.querySelectorAll(".tip > *")].map(e => e.textContent).join("; ");
  setTimeout(() => {
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data, colors = new Set();
    for (let i = 0; i < data.length; i += 4) colors.add(data.slice(i, i + 3).join(","));
    parent.postMessage(JSON.stringify({ costs, shown, header: header.firstElementChild.tagName, said: tip,
      colors: [...colors].slice(0, 4000).join(";") }), "*");
  }, 500);
}));
</script>
"""

FRAME = """<!DOCTYPE html><html lang="en"><title>frame</title><body>
<script>addEventListener("message", event =>
  fetch("{address}", {{ method: "POST", mode: "no-cors", body: event.data }}));</script>
<iframe src="{page}" style="border:0;width:{width}px;height:900px"></iframe></body></html>
"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium on this machine (Debian: apt install chromium)"
    ),
]


class ProbeServer(http.server.HTTPServer):
    """Receiver of what the probe of a page saw; the browser posts it when it is there."""

    seen: bytes = b""
    timeout = PATIENCE_S

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _ProbeRequest)


class _ProbeRequest(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, ProbeServer)
        self.server.seen = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Say nothing."""


def open_page(page: Path, width: int, folder: Path) -> tuple[dict[str, object], str]:
    """What the probe saw, and what the browser's console said.

    The page sits in a frame of the width, since a browser window is never narrower than 500 pixels.
    The browser's time is real: in virtual time it may end before a frame was drawn.
    """
    assert CHROMIUM is not None
    frame = page.with_name("frame.html")
    command = [
        CHROMIUM,
        *FLAGS,
        f"--user-data-dir={folder / 'profile'}",
        "--window-size=1400,1000",
        frame.as_uri(),
    ]
    log = folder / "console"
    with ProbeServer() as server, log.open("w") as errors:
        address = f"http://127.0.0.1:{server.server_port}"
        frame.write_text(FRAME.format(page=page.name, width=width, address=address))
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors) as browser:
            server.handle_request()
            browser.terminate()
    assert server.seen, log.read_text()
    console = "\n".join(line for line in log.read_text().splitlines() if "CONSOLE" in line)
    return json.loads(server.seen), console


def probed(page: Path, name: str, probe: str = PROBE) -> Path:
    """A copy whose policy lets the probe run; nothing else differs."""
    source = page.read_text(encoding="utf-8")
    policy = re.search(r'<meta http-equiv="Content-Security-Policy"[^>]*>', source)
    assert policy is not None
    copy = page.with_name(name)
    copy.write_text(
        source.replace(policy[0], "").replace("</body>", probe + "</body>"), encoding="utf-8"
    )
    return copy


@pytest.fixture(scope="module")
def page(
    quickstart_run: RunData,
    quickstart_analysis: AnalysisResult,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    return write_report(quickstart_run, quickstart_analysis, tmp_path_factory.mktemp("report"))


@pytest.mark.parametrize("width", [360, 390, 768, 1280])
def test_it_fits(width: int, page: Path, tmp_path: Path) -> None:
    seen, console = open_page(probed(page, "probed.html"), width, tmp_path)
    assert seen["width"] == width
    assert seen["scroll"] == width
    assert seen["out"] == []
    assert seen["images"] == 6
    assert seen["narrow"] == (6 if width < 640 else 0)
    assert seen["small"] == 0
    assert seen["pictures"] == 5
    assert width - 40 <= seen["timeline"] <= width or seen["timeline"] == 960
    assert console == ""


@pytest.mark.long
def test_long_and_hostile_names_fit_a_phone(
    quickstart_run: RunData, quickstart_analysis: AnalysisResult, tmp_path: Path
) -> None:
    hosts = tuple(
        replace(h, host="x" * 120 + f"<b>{h.rank}", tier="t" * 60) for h in quickstart_run.hosts
    )
    findings = tuple(
        f.model_copy(update={"host": hosts[4].host}) for f in quickstart_analysis.findings
    )
    run = replace(quickstart_run, hosts=hosts)
    page = write_report(run, replace(quickstart_analysis, hosts=hosts, findings=findings), tmp_path)
    seen, _ = open_page(probed(page, "probed.html"), 390, tmp_path)
    assert seen["scroll"] == 390
    assert seen["out"] == []


def test_tables_are_sorted_and_the_timeline_zooms(page: Path, tmp_path: Path) -> None:
    seen, console = open_page(probed(page, "used.html", USE), 1280, tmp_path)
    assert console == ""
    by_cost = seen["costs"]
    assert isinstance(by_cost, dict)
    cost = [float(text.split()[0]) for text in by_cost["as written"]]
    assert [float(text.split()[0]) for text in by_cost["ascending"]] == sorted(cost)
    assert [float(text.split()[0]) for text in by_cost["descending"]] == sorted(cost, reverse=True)
    assert by_cost["none"] == by_cost["as written"]
    assert seen["header"] == "BUTTON"
    shown = seen["shown"]
    assert isinstance(shown, dict)
    assert shown["whole"] == shown["reset"] == shown["wheel, not chosen"]
    whole = window(shown["whole"])
    by_two = [0.25 * whole[1], 0.75 * whole[1]]
    for how in ("button", "key", "wheel", "pinch"):
        assert window(shown[how]) == pytest.approx(by_two, abs=0.02 * whole[1]), how
    assert window(shown["strip"]) == pytest.approx(
        [0.2 * whole[1], 0.4 * whole[1]], abs=0.02 * whole[1]
    )
    assert window(shown["drag"]) == pytest.approx([0.0, 0.5 * whole[1]], abs=0.02 * whole[1])
    assert window(shown["later"]) == pytest.approx(
        [0.375 * whole[1], 0.875 * whole[1]], abs=0.02 * whole[1]
    )
    said = str(seen["said"])
    assert said.startswith("cloud.trainer.1.1")
    assert re.search(r"\d s to \d.*(forward|backward|transfer|wait) \d+ %", said)
    assert {"0,114,178", "213,94,0", "86,180,233"} <= set(str(seen["colors"]).split(";"))


def window(text: str) -> list[float]:
    """First and last second that the timeline says it shows."""
    numbers = [float(number) for number in re.findall(r"([0-9.]+) s", text)]
    return [0.0, numbers[0]] if text.startswith("The whole run") else numbers[:2]


AMOUNTS = (
    "0 s",
    "± 0.5 ms",
    "40 ms",
    "under 0.1 %",
    "672 ms (1 %)",
    "1.1 s",
    "9.9x",
    "12 s (18 %)",
    "20 of 20",
    "30 s to 50 s, steps 51-73",
    "41 s",
    "2 min 5 s",
    "12 min",
    "12 min 5 s",
    "820 kB",
    "96.5 Mbit/s",
    "1.24 GB",
    "10.77.0.2",
    "10.77.0.10",
    "2026-11-22",
    "edge.trainer.1.2",
    "edge.trainer.1.10",
    "the whole run",
)


def test_numbers_are_sorted_with_their_units_and_names_by_theirs(tmp_path: Path) -> None:
    script = (Path(report.__file__).parent / "sorting.js").read_text(encoding="utf-8")
    # The smallest last, and nothing next to its neighbour.
    mixed = [*AMOUNTS[1::2], *AMOUNTS[::2]][::-1]
    rows = "".join(f"<tr><td>{text.replace(' ', '&nbsp;')}</td></tr>" for text in mixed)
    page = tmp_path / "table.html"
    page.write_text(
        "<!DOCTYPE html><meta"
        f" charset=utf-8><body><table><thead><tr><th>it</th></tr></thead><tbody>{rows}</tbody></table><script>{script}</script><script>document.querySelector('th"
        " button').click();parent.postMessage(JSON.stringify([...document.querySelectorAll('td')].map(e"
        " => e.textContent)), '*')</script></body>",
        encoding="utf-8",
    )
    seen, console = open_page(page, 600, tmp_path)
    assert [text.replace("\N{NO-BREAK SPACE}", " ") for text in seen] == list(AMOUNTS)
    assert console == ""


def test_its_own_policy_stops_nothing_of_it(page: Path, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        *FLAGS,
        f"--user-data-dir={tmp_path / 'profile'}",
        "--dump-dom",
        page.as_uri(),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr
    assert 'aria-sort="none"' in done.stdout
    assert re.search(r'<canvas [^>]*style="height: ', done.stdout)

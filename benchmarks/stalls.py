"""Errors of `laggard stalls` for stalls of known seconds, each alone and all together.

    python benchmarks/stalls.py [REPEATS [CASE ...]]

The scenario is `experiments/stalls`, with a model and samples of known sizes (`stall_samples.py`). The stalls
are injected at the edge: its drives, its preparation, the link between its two hosts, and the links
to the cloud. The seconds of the drive are its latency plus bytes over bandwidth; those of an
all-reduce follow from the ring over links of these delays and rates (`core/cost_model`), with the
headers of TCP and IP, and without any cost of messages at the hosts. A slow link within the edge
also delays the ring of all hosts more than that of the edge alone, since parts cross it more often:
that is the network's stall, and is known too.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from stall_samples import PREP_VARIABLE, build

from laggard.analysis.stalls.stall_estimates import STALL_KINDS
from laggard.core.cost_model.arrays import FloatArray
from laggard.core.cost_model.links import HopEnds, NetworkHop
from laggard.core.cost_model.ring_all_reduce import compute_ring_finish_s

REPEATS = 5
HERE = Path(__file__).resolve().parent
SCENARIO = HERE.parent / "experiments" / "stalls"
SAMPLES, SAMPLE_BYTES = 128, 3 * 32 * 32
PREP_S, LATENCY_S, DRIVE_MB_PER_S = 0.1, 0.02, 4.0
ENDS: HopEnds = ("a", "b")
EDGE = NetworkHop(ENDS, rate_mbps=2.0, rtt_ms=10.0)
ACROSS = NetworkHop(ENDS, rate_mbps=2.0, rtt_ms=20.0)
FREE = NetworkHop(ENDS, rate_mbps=1000.0, rtt_ms=0.4)
FRAME_BYTES, SEGMENT_BYTES = 1500, 1448
STEPS = 8
WORKERS = 4
LEAST_SHARE = 0.02
"""Share of a step from which a known stall counts as injected."""

CASES = ("none", "fetch", "prep", "interconnect", "network", "all")


@dataclass(frozen=True)
class Case:
    """Set of injected stalls.

    Attributes:
        name: `none`, `all`, or the only stall.
    """

    name: str

    def has(self, kind: str) -> bool:
        """Return whether a stall is injected."""
        return self.name in (kind, "all")

    def overrides(self) -> Iterator[str]:
        """Yield the overrides that leave only the injected stalls."""
        rules = [{"hosts": "all", "cpu": "20%"}]
        if self.has("fetch"):
            drive = {"read": f"{DRIVE_MB_PER_S}MB/s", "read_latency": f"{LATENCY_S * 1e3}ms"}
            rules.append({"hosts": "edge.*", **drive})
        yield f"heterogeneity.deterministic={json.dumps(rules)}"
        networks = []
        for kind, dst, hop in (("interconnect", "edge.*", EDGE), ("network", "cloud.*", ACROSS)):
            link = {"delay": f"{hop.rtt_ms / 2}ms", "rate": f"{hop.rate_mbps}mbit"}
            free = {"delay": f"{FREE.rtt_ms / 2}ms", "rate": f"{FREE.rate_mbps}mbit"}
            pair = {"src": "edge.*", "dst": dst, "symmetric": dst != "edge.*"}
            networks.append({**pair, **(link if self.has(kind) else free)})
        yield f"network.networks={json.dumps(networks)}"
        yield f"workload.batch_size={WORKERS * SAMPLES}"
        yield "workload.dataset=stall_samples:load"
        yield "workload.model=stall_samples:build"

    def seconds(self) -> Mapping[str, float]:
        """Return the seconds of a step at the edge that follow from the scenario, by kind."""
        fetch_s = LATENCY_S + SAMPLES * SAMPLE_BYTES / DRIVE_MB_PER_S / 1e6
        edge = EDGE if self.has("interconnect") else FREE
        across = ACROSS if self.has("network") else FREE
        # Ranks are cloud, cloud, edge, edge, and a ring in this order.
        interconnect_s = float(ring_s(edge, edge).mean())
        network_s = float(ring_s(FREE, across, edge, across)[2:].mean()) - interconnect_s
        return {
            "fetch": fetch_s if self.has("fetch") else 0.0,
            "prep": PREP_S if self.has("prep") else 0.0,
            "interconnect": interconnect_s,
            "network": network_s,
        }


def ring_s(*hops: NetworkHop) -> FloatArray:
    """Return the seconds of an all-reduce of the model's gradients over a ring, of each host."""
    size = sum(4 * each.numel() for each in build((3, 32, 32), 10).parameters())
    on_wire = size * FRAME_BYTES / SEGMENT_BYTES
    return compute_ring_finish_s(np.zeros((1, len(hops))), hops, on_wire)[0]


def measure(case: Case, repeats: int, runs: Path) -> dict[str, dict[str, float]]:
    """Return the stalls of the edge, as `laggard stalls` tells them."""
    words = [
        "stalls",
        str(SCENARIO),
        f"--repeats={repeats}",
        f"--steps={STEPS}",
        "--json",
        f"--runs={runs}",
    ]
    words += [f"--name={case.name}", "--fidelity=record"]
    words += [f"--set={each}" for each in case.overrides()]
    paths = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    environment = {"PYTHONPATH": paths, PREP_VARIABLE: str(PREP_S if case.has("prep") else 0)}
    done = subprocess.run(
        [sys.executable, "-m", "laggard", *words],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    edge: dict[str, dict[str, float]] = json.loads(done.stdout)["tiers"]["edge"]
    return edge


def main() -> None:
    """Print a row for every case and kind of stall, and the largest errors."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else REPEATS
    errors: list[float] = []
    surplus: dict[str, list[float]] = {}
    print("| injected | stall | known ms | measured ms (95 %) | error | more, of a step |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for case in map(Case, sys.argv[2:] or CASES):
            edge, known = measure(case, repeats, Path(folder)), case.seconds()
            step_s = edge["compute_s"]["mean"] + sum(
                edge[f"{kind}_s"]["mean"] for kind in STALL_KINDS
            )
            for kind in STALL_KINDS:
                found, true_s = edge[f"{kind}_s"], known.get(kind, 0.0)
                mean, low, high = (
                    "-" if found[end] is None else f"{found[end] * SAMPLES * 1e3:.1f}"
                    for end in ("mean", "low", "high")
                )
                more_s = found["mean"] * SAMPLES - true_s
                relative, share = "", more_s / (step_s * SAMPLES)
                if true_s > LEAST_SHARE * step_s * SAMPLES:
                    errors.append(abs(more_s) / true_s)
                    relative = f"{100 * more_s / true_s:+.1f} %"
                else:
                    surplus.setdefault(kind, []).append(share)
                print(
                    f"| {case.name} | {kind} | {true_s * 1e3:.1f} | {mean} ({low} to {high}) |"
                    f" {relative} | {100 * share:+.1f} % |",
                    flush=True,
                )
    if errors:
        print(
            f"\n{len(errors)} injected stalls: error median {100 * statistics.median(errors):.1f} %,"
            f" largest {100 * max(errors):.1f} %"
        )
    for kind, shares in surplus.items():
        print(
            f"{kind}, {len(shares)} times not injected: median"
            f" {100 * statistics.median(shares):+.2f} % of a step, largest"
            f" {100 * max(shares, key=abs):+.2f} %"
        )


if __name__ == "__main__":
    main()

"""Dynamic split computing on five recorded links, against a choice that knows the link's future.

    python benchmarks/split_points.py [SEEDS]

A device with a tenth of a core answers requests for an image network, alone or with a server of a
whole core behind a mobile link. The seconds of the blocks are measured here. The links are of
commutes in Oslo, `benchmarks/link_traces` (H. Riiser et al., "Commute path bandwidth traces from 3G
networks: analysis and applications", MMSys 2013), as parts that H. Mao et al. published with Pensieve (SIGCOMM 2017).
The clairvoyant choice knows the rates that a request will meet, the queues, and when the link is free.
"""

from __future__ import annotations

import csv
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import torch

from laggard.core.cost_model.links import NetworkHop
from laggard.core.serving.arrivals import draw_arrivals
from laggard.core.serving.served_network import ServedNetwork
from laggard.core.serving.split_point import (
    PROBE_S,
    LinkBelief,
    LinkState,
    QueueState,
    SplitChooser,
    SplitName,
)
from laggard.core.simulation.network import FRAMING_OVERHEAD, SimulatedNetwork, SlowPeriod
from laggard.core.simulation.serving import (
    CutChooser,
    ServingDevice,
    ServingSimulation,
    SimulatedRequest,
)
from laggard.workloads.inference.cut_model import Tensors, cut_model
from laggard.workloads.models import build_model

TRACES = Path(__file__).resolve().parent / "link_traces"
MODELS = ("resnet18", "vgg11")
SEEDS, REPEATS = 5, 20
DEVICE_SHARE, SERVER_SHARE = 0.1, 1.0
DELAY_S, ANSWER_BYTES, RATE = 0.04, 40.0, 0.7
SHAPE, CLASSES = (3, 64, 64), 10
ENDS = (("device", "server"), ("server", "device"))
SPLITS: tuple[SplitName, ...] = ("dynamic", "static", "none", "server")


@dataclass(frozen=True)
class LinkTrace:
    """Rates of a link from each time on."""

    times_s: tuple[float, ...]
    rates_mbps: tuple[float, ...]

    def network(self) -> SimulatedNetwork:
        """Return the link in both directions."""
        best = max(self.rates_mbps)
        ends_s = (*self.times_s[1:], math.inf)
        periods = tuple(
            SlowPeriod(first, last, ENDS, rate)
            for first, last, rate in zip(self.times_s, ends_s, self.rates_mbps, strict=True)
        )
        hops = {ends: NetworkHop(ends, best, DELAY_S * 2e3) for ends in ENDS}
        # The rate after the last time stays, and no period may end at infinity.
        return SimulatedNetwork(hops, slow_periods=(*periods[:-1], _end(periods[-1])))

    def send_s(self, from_s: float, size_bytes: float) -> float:
        """Return the seconds of a message that has the link for itself."""
        left, now_s = size_bytes * 8 * FRAMING_OVERHEAD / 1e6, from_s
        for (_, until_s), rate in zip(
            pairwise((*self.times_s, math.inf)), self.rates_mbps, strict=True
        ):
            if until_s <= now_s:
                continue
            if left <= (until_s - now_s) * rate:
                return now_s + left / rate - from_s
            left -= (until_s - now_s) * rate
            now_s = until_s
        raise AssertionError


def _end(period: SlowPeriod) -> SlowPeriod:
    return SlowPeriod(period.first_s, 1e9, period.ends, period.rate_mbps)


def read_trace(path: Path) -> LinkTrace:
    """Read a trace in the columns of a scenario's traces."""
    with path.open() as stream:
        rows = list(csv.DictReader(stream))
    return LinkTrace(
        tuple(float(row["seconds"]) for row in rows),
        tuple(float(row["rate_mbps"]) for row in rows),
    )


def profile(name: str) -> ServedNetwork:
    """Measure the blocks of a network on a core of this machine."""
    model = build_model(name, SHAPE, CLASSES, seed=1).eval()
    inputs = torch.randn(2, *SHAPE)
    chain = cut_model(model, inputs, DEVICE_SHARE, SERVER_SHARE)
    seconds, sizes = [], []
    torch.set_num_threads(1)
    values: Tensors = (inputs[:1],)
    with torch.inference_mode():
        for number in range(len(chain.blocks)):
            sizes.append(float(sum(each.nbytes for each in values)))
            times = []
            for _ in range(REPEATS):
                begun_s = time.perf_counter()
                found = chain.compute(number, values)
                times.append(time.perf_counter() - begun_s)
            seconds.append(statistics.median(times))
            values = found
    return ServedNetwork(
        name,
        tuple(each / DEVICE_SHARE for each in seconds),
        tuple(each / SERVER_SHARE for each in seconds),
        tuple(sizes),
        ANSWER_BYTES,
    )


@dataclass
class Clairvoyant:
    """Choice that knows the rates of the link, and when its own messages will have passed it."""

    trace: LinkTrace
    simulation: ServingSimulation = field(init=False)
    _free_s: float = 0.0

    def choose(self, network: ServedNetwork, queues: QueueState) -> int:
        """Return the cut with the shortest latency."""
        heads_s, tails_s = network.sum_head_s(), network.sum_tail_s()
        now_s, latencies = self.simulation.now_s, []
        for cut, size_bytes in enumerate(network.cut_bytes):
            sent_s = now_s + heads_s[cut] + (queues.device_s if cut else 0.0)
            sent_s = max(sent_s, self._free_s)
            far_s = sent_s + self.trace.send_s(sent_s, size_bytes) + DELAY_S
            back_s = far_s + queues.server_s + tails_s[cut]
            back_s += self.trace.send_s(back_s, network.answer_bytes) + DELAY_S
            latencies.append(back_s - now_s)
        latencies.append(queues.device_s + network.alone_s)
        return latencies.index(min(latencies))

    def learn(self, size_bytes: float, took_s: float) -> None:
        """Learn nothing: it knows."""

    def note_sent(self, number: int, size_bytes: float, now_s: float) -> None:
        """Note when the last message will have passed the link."""
        del number
        begun_s = max(now_s, self._free_s)
        self._free_s = begun_s + self.trace.send_s(begun_s, size_bytes)

    def note_answered(self, number: int) -> None:
        """Note nothing."""

    def predict_link_wait_s(self, now_s: float) -> float:
        """Return the seconds until the last message has passed the link."""
        return max(self._free_s - now_s, 0.0)


def serve(
    network: ServedNetwork, trace: LinkTrace, chooser: CutChooser, times_s: Sequence[float]
) -> tuple[float, int]:
    """Return the mean latency, and the number of switches between cuts."""
    device = ServingDevice("device", (network,), chooser=chooser, server="server", probe_s=PROBE_S)
    simulation = ServingSimulation([device], trace.network())
    if isinstance(chooser, Clairvoyant):
        chooser.simulation = simulation
        device.probe_s = math.inf
    answered = simulation.run([SimulatedRequest("device", 0, each) for each in times_s])
    cuts = [simulation.cuts[number] for number in range(len(times_s))]
    latencies = [each.latency_s for each in answered if each.latency_s is not None]
    return statistics.mean(latencies), sum(a != b for a, b in pairwise(cuts))


def main() -> None:
    """Print a row for every network and link, and the mean regret."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    print("| network | link | clairvoyant | " + " | ".join(SPLITS) + " | regret | switches |")
    print("|---|---|---|" + "---|" * (len(SPLITS) + 2))
    regrets = []
    for name in MODELS:
        network = profile(name)
        for path in sorted(TRACES.glob("*.csv")):
            trace = read_trace(path)
            means: dict[str, list[float]] = {}
            moves: dict[str, list[int]] = {}
            for seed in range(seeds):
                count = int(RATE * trace.times_s[-1])
                times_s = draw_arrivals(RATE, count, (seed, 2))
                start = LinkState(trace.rates_mbps[0] / FRAMING_OVERHEAD, 2 * DELAY_S)
                choosers: dict[str, CutChooser] = {"clairvoyant": Clairvoyant(trace)}
                choosers |= {each: SplitChooser(each, LinkBelief(start)) for each in SPLITS}
                for kind, chooser in choosers.items():
                    mean_s, switches = serve(network, trace, chooser, times_s)
                    means.setdefault(kind, []).append(mean_s)
                    moves.setdefault(kind, []).append(switches)
            found = {kind: statistics.mean(values) for kind, values in means.items()}
            regret = found["dynamic"] / found["clairvoyant"] - 1
            regrets.append(regret)
            shown = " | ".join(f"{found[each] * 1e3:.0f} ms" for each in ("clairvoyant", *SPLITS))
            rows = len(times_s)
            print(
                f"| {name} | {path.stem} | {shown} | {regret:+.1%} |"
                f" {statistics.mean(moves['dynamic']):.0f} of {rows}"
                f" (clairvoyant {statistics.mean(moves['clairvoyant']):.0f}) |",
                flush=True,
            )
    print(f"\nregret: mean {statistics.mean(regrets):.1%}, largest {max(regrets):.1%}")


if __name__ == "__main__":
    main()

"""Round trips and rates of two shipped scenarios under netem, in Debian's user-mode kernel.

    python benchmarks/netem_fidelity.py [dilation ...]

That kernel has one slow virtual processor for both ends of every flow and the shaper between them.
Dilation leaves it more time.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import TypedDict, cast

REPOSITORY = Path(__file__).resolve().parents[1]
SCENARIOS = ("quickstart", "homogeneous")
DILATIONS = ("1", "2.6", "5", "8")

INSIDE = """
    import itertools
    import time
    from laggard.layers_services.local.provider import enoslib_roles, use_namespace_connection
    use_namespace_connection()
    from laggard.scenario.load import load_scenario
    from laggard.layers_services.local import sandbox
    from laggard.layers_services.local.namespaces import create_namespaces
    from laggard.network_emulation.links.plan_links import dilate_links
    from laggard.network_emulation.fidelity.verify_links import verify_links
    from laggard.network_emulation.links.netem import NetemBackend
    from laggard.network_emulation.links.tcp_settings import configure_tcp_of
    from laggard.core.virtual_time import Dilation

    def measure(name, factor, answer):
        dilation = Dilation(float(factor))
        scenario = load_scenario(pathlib.Path(REPOSITORY, "experiments", name))
        namespaces = create_namespaces(scenario.hosts, "bridge")
        plan = dilate_links(scenario.links, dilation)
        configure_tcp_of(namespaces.paths, dilation)
        roles, networks = enoslib_roles(plan.hosts)
        NetemBackend.start(plan, roles, networks, namespaces.ports, deployment="direct")
        began = time.monotonic()
        checks = [check.model_dump(mode="json") for check in verify_links(scenario.links, namespaces.paths, dilation)]
        seconds = time.monotonic() - began
        with os.fdopen(answer, "w") as stream:
            json.dump({"scenario": name, "dilation": factor, "seconds": seconds, "checks": checks}, stream)
        return 0

    found = []
    for name, factor in itertools.product(SCENARIOS, DILATIONS):
        read, write = os.pipe()
        assert sandbox.run_in_sandbox(lambda: measure(name, factor, write)) == 0
        os.close(write)
        with os.fdopen(read) as stream:
            found.append(json.load(stream))
    result(found)
"""


class Check(TypedDict):
    """Fields of a `FidelityCheck` that this benchmark reads."""

    kind: str
    requested: float
    measured: float
    ok: bool


class Series(TypedDict):
    """All checks of one scenario under one dilation."""

    scenario: str
    dilation: str
    seconds: float
    checks: list[Check]


def row(series: Series) -> str:
    """Format one row of the table."""
    trips = [
        abs(each["measured"] - each["requested"])
        for each in series["checks"]
        if each["kind"] == "rtt"
    ]
    rates = [
        100 * (each["measured"] / each["requested"] - 1)
        for each in series["checks"]
        if each["kind"] == "rate"
    ]
    missed = sum(not each["ok"] for each in series["checks"])
    cells = [
        series["scenario"],
        series["dilation"],
        f"{len(trips)}: {statistics.median(trips):.2f}, {max(trips):.2f}",
        f"{len(rates)}: {statistics.median(rates):+.1f}, {min(rates):+.1f}",
        f"{missed} of {len(series['checks'])}",
        f"{series['seconds']:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print a table."""
    sys.path.insert(0, str(REPOSITORY))
    from tests.uml import kernel

    dilations = tuple(sys.argv[1:]) or DILATIONS
    script = INSIDE.replace("REPOSITORY", repr(str(REPOSITORY)))
    script = script.replace("SCENARIOS", repr(SCENARIOS)).replace("DILATIONS", repr(dilations))
    with tempfile.TemporaryDirectory() as folder:
        answer = kernel.boot(script, Path(folder), memory="2G", limit_s=900)
    print(
        "| scenario | D | round trips: median, worst error, ms | rates: median, lowest, % | out of"
        " tolerance | duration, s |"
    )
    print("|---|---|---|---|---|---|")
    for series in cast("list[Series]", answer):
        print(row(series))


if __name__ == "__main__":
    main()

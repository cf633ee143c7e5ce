"""`laggard.core.hosts.select_hosts` against E2Clab's own look-up on the same roles."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from laggard.core.hosts import select_hosts
from laggard.layers_services.compile import compile_hosts
from laggard.layers_services.model import LayersServices

if TYPE_CHECKING:
    from tests.users import Runner

CONTINUUM = {
    "environment": {"g5k": {}},
    "layers": [
        {
            "name": "cloud",
            "services": [{"name": "server"}, {"name": "trainer", "quantity": 2, "roles": ["gpu"]}],
        },
        {"name": "fog", "services": [{"name": "gateway", "repeat": 1}]},
        {
            "name": "edge",
            "services": [
                {"name": "trainer", "quantity": 12},
                {"name": "sensor_x", "roles": ["gpu", "iot"]},
            ],
        },
    ],
}
PATTERNS = (
    "edge.*", "cloud.*", "*", "all", "edge", "cloud", "trainer", "gpu", "iot", "1_1", "1_2", "3_1", "EDGE.*", "Cloud",
    "edge.trainer.*", "edge.trainer.1.*", "edge.trainer.1.1", "*.trainer.*", "*.1.1", "*.1", "edge.*:fog.*", "edge.*,fog.*",
    "edge.*:!edge.sensor_x.*", "edge.*,!edge.trainer.1.2", "*.trainer.*:&cloud.*", "!edge.*", "all:!cloud.*", "edge:!edge",
    "edge.*:!edge", "edge.?rainer.*", "edge.[st]*", "edge.[!s]*", "~edge.*", "~(edge|fog).*", "~.*\\.2$", "nothing", "nothing.*",
    "edge.*[0]", "edge.*[0:1]", "edge.*[-1]", "fog.gateway.2.1", "fog.*:cloud.server.1.1", "&edge.*", "edge.* : fog.*",
    "gpu:iot", "fog.*[1:]", "cloud.trainer.2", "cloud.trainer.2.*", "sensor_x",
)  # fmt: skip

LOOK_UP = """
    import json, sys
    from laggard.layers_services.local.provider import use_namespace_connection
    use_namespace_connection()
    from e2clab.utils import get_hosts_from_pattern
    from laggard.layers_services.compile import compile_hosts
    from laggard.layers_services.e2clab.services import DeployedServices
    from laggard.layers_services.e2clab.workflow import _keep_first_hosts
    from laggard.layers_services.local.provider import enoslib_roles
    from laggard.layers_services.model import LayersServices
    document, patterns = json.load(open("question.json"))
    hosts = compile_hosts(LayersServices.model_validate(document))
    roles, networks = enoslib_roles(hosts)
    roles = _keep_first_hosts(DeployedServices(roles, {}), hosts).roles
    for pattern in patterns:
        found = sorted(host.alias for host in get_hosts_from_pattern(roles, pattern))
        print(json.dumps({"pattern": pattern, "found": found}))
"""


@pytest.mark.long
def test_patterns_select_what_e2clab_selects(own_runner: Runner) -> None:
    hosts = compile_hosts(LayersServices.model_validate(CONTINUUM))
    (own_runner.folder / "question.json").write_text(json.dumps([CONTINUUM, PATTERNS]))
    result = own_runner.run(LOOK_UP, timeout_s=480)
    theirs = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert [each["pattern"] for each in theirs] == list(PATTERNS), result.stderr
    ours = [
        {"pattern": pattern, "found": sorted(host.name for host in select_hosts(pattern, hosts))}
        for pattern in PATTERNS
    ]
    assert ours == theirs

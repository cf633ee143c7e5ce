"""A stand-in Grid'5000 as its users ask it, through the client that EnOSlib uses."""

from __future__ import annotations

import time
from typing import Any

from tests.testbed import nodes, oar
from tests.testbed.stand_in import PASSWORD, StandIn

PARASILO = tuple(f"parasilo-{number}.rennes.grid5000.fr" for number in (1, 2))


def client(grid: StandIn, **settings: Any) -> Any:
    """python-grid5000 with the user's account; `settings` are its own."""
    from grid5000 import Grid5000  # type: ignore[import-untyped]

    account = {"username": nodes.USER, "password": PASSWORD, "verify_ssl": True}
    return Grid5000(uri=grid.url, **(account | settings))


def submit(grid: StandIn, resources: str, site: str = "rennes", **details: Any) -> Any:
    """A new job; `details` are those of the submission."""
    wish = {"name": "test", "command": "sleep 1d", "resources": resources, "types": []} | details
    return client(grid).sites[site].jobs.create(wish)


def await_state(job: Any, state: str) -> list[str]:
    """The states a job goes through until it reaches one."""
    seen = [job.state]
    while seen[-1] != state:
        assert seen[-1] not in oar.ENDED
        time.sleep(0.02)
        job.refresh()
        if job.state != seen[-1]:
            seen.append(job.state)
    return seen

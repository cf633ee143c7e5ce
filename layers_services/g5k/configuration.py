"""EnOSlib's configuration for a planned reservation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laggard.layers_services.g5k.api import Pace, create_client
from laggard.layers_services.g5k.request import G5kPlan, JobReference

if TYPE_CHECKING:
    from enoslib import G5kConf

FORKS = 32


def client_is_ready(pace: Pace, auto_jump: bool | None = None) -> None:
    """Set the API's timeout and keep EnOSlib's output off the terminal.

    Args:
        pace: timeouts and retries
        auto_jump: True to reach nodes through Grid'5000's access machine; None uses it if this
            machine is outside of Grid'5000
    """
    import enoslib

    # EnOSlib shares one client per process, so the timeout applies to its own requests too.
    create_client(pace)
    enoslib.set_config(ansible_stdout="noop", ansible_forks=FORKS, g5k_auto_jump=auto_jump)


def build_conf(plan: G5kPlan, job_name: str, jobs: tuple[JobReference, ...] = ()) -> G5kConf:
    """Build the configuration of EnOSlib's provider.

    It queries the API to learn which clusters are exotic.

    Args:
        plan: the reservation
        job_name: name of the job on the testbed
        jobs: existing jobs to use instead of a submission

    Returns:
        Configuration with one group of machines per group of the plan. The name of the group's
        first host is a role that no other group has.
    """
    import enoslib

    conf = enoslib.G5kConf.from_settings(
        job_name=job_name,
        job_type=list(plan.job_types),
        queue=plan.queue,
        walltime=plan.walltime,
        reservation=plan.reservation,
        env_name=plan.env_name,
        project=plan.project,
        key=plan.key,
        monitor=plan.monitor,
    )
    if jobs:
        # With job numbers, EnOSlib uses these jobs and submits nothing.
        conf.oargrid_jobids = [[job.site, str(job.job_id)] for job in jobs]
    networks = {
        network.id: enoslib.G5kNetworkConf(
            id=network.id, type=network.kind, roles=list(network.roles), site=network.site
        )
        for network in plan.networks
    }
    for network in networks.values():
        conf.add_network_conf(network)
    for group in plan.groups:
        wanted = (
            {"servers": list(group.servers)}
            if group.servers
            else {"cluster": group.cluster, "site": group.site}
        )
        conf.add_machine(
            roles=[*group.roles, group.hosts[0]],
            nodes=group.nodes,
            min=group.nodes,
            primary_network=networks[group.network],
            **wanted,
        )
    return conf.finalize()

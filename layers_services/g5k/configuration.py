"""A planned reservation as EnOSlib's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laggard.layers_services.g5k.api import Pace, create_client
from laggard.layers_services.g5k.request import G5kPlan, JobReference

if TYPE_CHECKING:
    from enoslib import G5kConf

FORKS = 32


def client_is_ready(pace: Pace, auto_jump: bool | None = None) -> None:
    """Bound the API's answers, and keep EnOSlib off the terminal.

    Args:
        pace: how patient to be.
        auto_jump: reach nodes through Grid'5000's access machine; None: where this machine is
            outside.
    """
    import enoslib

    create_client(pace)
    enoslib.set_config(ansible_stdout="noop", ansible_forks=FORKS, g5k_auto_jump=auto_jump)


def build_conf(plan: G5kPlan, job_name: str, jobs: tuple[JobReference, ...] = ()) -> G5kConf:
    """What EnOSlib's provider is to reserve; asks the API whether the clusters are exotic.

    Args:
        plan: the reservation.
        job_name: on the testbed.
        jobs: use these instead of submitting.

    Returns:
        One group of machines per group of the plan, with the name of its first host as a role that
        no other group has.
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

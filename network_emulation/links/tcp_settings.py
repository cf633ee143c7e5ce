"""TCP settings of hosts: the same congestion control everywhere, and timers for dilated runs.

Otherwise hosts inherit the machine's default, which may be BBR, and BBR hides loss. By sysctl, a
namespace other than the first may choose only among the machine's *allowed* algorithms. A route
may name any *available* one (`congctl` in ip-route(8)), so the setting is on the route.

TCP's own timers do not dilate. Dilated runs therefore use reno, which does not depend on a clock
(cubic's growth is a function of time, RFC 9438), a minimum retransmission time-out scaled by D,
and no slow start after idle.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import EmulationError
from laggard.core.linux import inside_network
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.forked import run_forked

DEVICE = "eth0"
_IPV4 = Path("/proc/sys/net/ipv4")
_PREFERRED = ("cubic", "reno")
_RTO_MIN_MS = 200.0
"""Linux's minimum retransmission time-out."""
_BUFFER_BYTES = 256 << 20
"""Size up to which TCP buffers may grow, so that they do not limit long fast links."""
_RTAX_RTO_MIN = 13
"""Number of the route metric `rto_min` in the kernel's rtnetlink.h."""
_IPV6_PRIORITY = 256
"""Priority of the routes that the kernel creates for addresses."""


@dataclass(frozen=True)
class TcpSettings:
    """TCP settings of one namespace.

    Attributes:
        congestion_control: name of the algorithm.
        rto_min_ms: minimum retransmission time-out; None is Linux's 200 ms.
    """

    congestion_control: str
    rto_min_ms: float | None


def configure_tcp(namespace: Path, dilation: Dilation) -> TcpSettings:
    """Set the TCP of a namespace whose `eth0` is up and has an address.

    Connections do not inherit metrics of earlier ones (`tcp_no_metrics_save`), so measuring a link
    does not change the training on it. Buffers may grow to 256 MiB, so that they do not limit long
    fast links.

    Args:
        namespace: file that the network namespace is bound to.
        dilation: dilation of the run.

    Raises:
        EmulationError: if the kernel refuses.
    """
    return run_forked("laggard-tcp", lambda: apply_tcp(namespace, dilation))


def configure_tcp_of(namespaces: Mapping[str, Path], dilation: Dilation) -> dict[str, TcpSettings]:
    """Set the TCP of many hosts in one process, which takes milliseconds per host."""
    return run_forked(
        "laggard-tcp",
        lambda: {name: apply_tcp(namespace, dilation) for name, namespace in namespaces.items()},
    )


def apply_tcp(namespace: Path, dilation: Dilation) -> TcpSettings:
    """Set the TCP like `configure_tcp`, in this process, which must have only one thread."""
    settings = choose_settings(_read_available(namespace), dilation)
    try:
        with inside_network(namespace):
            _write_settings(dilation.factor > 1)
            _set_route_metrics(settings)
    except OSError as error:
        raise EmulationError(
            f"cannot set the TCP of {namespace} to {settings.congestion_control}: {error}"
        ) from error
    return settings


def choose_settings(available: tuple[str, ...], dilation: Dilation) -> TcpSettings:
    """Return the TCP settings for the available algorithms (reno always is)."""
    if dilation.factor > 1:
        return TcpSettings("reno", dilation.real_ms(_RTO_MIN_MS))
    return TcpSettings(next((name for name in _PREFERRED if name in available), "reno"), None)


def _read_available(namespace: Path) -> tuple[str, ...]:
    with inside_network(namespace):
        return tuple(
            (_IPV4 / "tcp_available_congestion_control").read_text(encoding="ascii").split()
        )


def _write_settings(dilated: bool) -> None:
    settings = {"tcp_no_metrics_save": "1", "tcp_slow_start_after_idle": "0" if dilated else "1"}
    for name in ("tcp_rmem", "tcp_wmem"):
        smallest, usual, largest = (_IPV4 / name).read_text(encoding="ascii").split()
        settings[name] = f"{smallest} {usual} {max(int(largest), _BUFFER_BYTES)}"
    for name, value in settings.items():
        (_IPV4 / name).write_text(value, encoding="ascii")


def _set_route_metrics(settings: TcpSettings) -> None:
    from pyroute2 import IPRoute, NetlinkError

    metrics: dict[str, int | str] = {"cc_algo": settings.congestion_control}
    if settings.rto_min_ms is not None:
        # Linux applies a route's rto_min only if the metric is locked.
        metrics |= {"lock": 1 << _RTAX_RTO_MIN, "rto_min": round(settings.rto_min_ms)}
    try:
        with IPRoute() as netlink:
            (device,) = netlink.link_lookup(ifname=DEVICE)
            (address,) = netlink.get_addr(index=device, family=socket.AF_INET)
            own = address.get_attr("IFA_LOCAL")
            netlink.route(
                "replace",
                dst=_format_network(own, address),
                oif=device,
                prefsrc=own,
                scope="link",
                proto="kernel",
                metrics=metrics,
            )
            for address in netlink.get_addr(index=device, family=socket.AF_INET6):
                dst = _format_network(address.get_attr("IFA_ADDRESS"), address)
                netlink.route(
                    "replace",
                    family=socket.AF_INET6,
                    dst=dst,
                    oif=device,
                    priority=_IPV6_PRIORITY,
                    proto="kernel",
                    metrics=metrics,
                )
    except (NetlinkError, ValueError) as error:
        raise EmulationError(f"cannot set {settings} on the route of {DEVICE}: {error}") from error


def _format_network(own: str, address: Mapping[str, int]) -> str:
    return str(ipaddress.ip_interface(f"{own}/{address['prefixlen']}").network)

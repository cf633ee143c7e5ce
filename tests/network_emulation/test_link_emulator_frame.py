"""Frames weigh what they do on an Ethernet wire, header of every segment included."""

from __future__ import annotations

import socket
import struct

import pytest

from laggard.network_emulation.links.userspace import frame


def ipv4(
    payload: bytes, segment: int = 0, options: int = 12, destination: str = "10.77.0.9"
) -> bytes:
    """A frame as TUN gives it; a super-packet when `segment` is the size of its segments' data."""
    headers = 20 + 20 + options
    # hdr_len is deliberately wrong: Linux puts there what happens to be linear.
    vnet = struct.pack("<BBHHHH", 1 if segment else 0, 1 if segment else 0, 1000, segment, 20, 16)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, min(65535, headers + len(payload)), 0, 0, 64, 6, 0)
    ip += socket.inet_aton("10.77.0.1") + socket.inet_aton(destination)
    tcp = struct.pack("!HHIIBBHHH", 1, 2, 0, 0, (20 + options) // 4 << 4, 0x10, 0, 0, 0) + bytes(
        options
    )
    return vnet + ip + tcp + payload


def ipv6(
    payload: bytes, segment: int = 0, options: int = 12, destination: str = "fd77::9"
) -> bytes:
    """The same over IPv6."""
    vnet = struct.pack("<BBHHHH", 1 if segment else 0, 4 if segment else 0, 1000, segment, 40, 16)
    ip = struct.pack("!IHBB", 6 << 28, min(65535, 20 + options + len(payload)), 6, 64)
    ip += socket.inet_pton(socket.AF_INET6, "fd77::1") + socket.inet_pton(
        socket.AF_INET6, destination
    )
    tcp = struct.pack("!HHIIBBHHH", 1, 2, 0, 0, (20 + options) // 4 << 4, 0x10, 0, 0, 0) + bytes(
        options
    )
    return vnet + ip + tcp + payload


@pytest.mark.parametrize(
    ("data", "segment", "options", "expected"),
    [
        (0, 0, 12, (66, 66, 1)),
        (1448, 0, 12, (1514, 1514, 1)),
        (1448 * 2, 1448, 12, (3028, 1514, 2)),
        (1448 * 2 + 1, 1448, 12, (3028 + 67, 1514, 3)),
        (1460 * 44, 1460, 0, (44 * 1514, 1514, 44)),
        (100, 1448, 12, (166, 166, 1)),
    ],
)
def test_weight(data: int, segment: int, options: int, expected: tuple[int, int, int]) -> None:
    assert frame.measure_frame(ipv4(bytes(data), segment, options)) == expected


@pytest.mark.parametrize(
    ("data", "segment", "expected"),
    [(0, 0, (86, 86, 1)), (1428, 0, (1514, 1514, 1)), (1428 * 40, 1428, (40 * 1514, 1514, 40))],
)
def test_weight_over_ipv6(data: int, segment: int, expected: tuple[int, int, int]) -> None:
    assert frame.measure_frame(ipv6(bytes(data), segment)) == expected


def test_destination() -> None:
    four, six = ipv4(b"x", destination="10.77.3.4"), ipv6(b"x", destination="fd77::304")
    assert frame.parse_destination(four) == socket.inet_aton("10.77.3.4")
    assert frame.parse_destination(six) == socket.inet_pton(socket.AF_INET6, "fd77::304")
    assert [
        frame.parse_destination(each)
        for each in (four[:29], six[:49], b"", bytes(10) + b"\x50" + bytes(60))
    ] == [b""] * 4

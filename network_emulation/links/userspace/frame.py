"""Frames of a TUN device with a virtio header: their size on the wire and their destination.

A frame is a `struct virtio_net_hdr` (10 bytes, host byte order) and an IP packet. The packet may
be a super-packet of up to 64 KiB that stands for many segments (generic segmentation offload). On
the wire each segment has its own headers. On an Ethernet device, netem and HTB count those,
Ethernet's included (`qdisc_pkt_len_init` in Linux), and so does `measure_frame`.
"""

from __future__ import annotations

VNET_HEADER_BYTES = 10
ETHERNET_BYTES = 14
_IP = VNET_HEADER_BYTES
_VERSION_4, _VERSION_6 = 4, 6
_DESTINATION_4 = slice(_IP + 16, _IP + 20)
_DESTINATION_6 = slice(_IP + 24, _IP + 40)

PLAIN_BYTES = ETHERNET_BYTES - VNET_HEADER_BYTES
"""Difference between wire size and memory size of a frame that is not a super-packet."""

_SEGMENTATION_TYPE = 1
_SEGMENT_SIZE = slice(4, 6)
_CHECKSUM_START = slice(6, 8)
_TCP_DATA_OFFSET = 12


def parse_destination(frame: bytes) -> bytes:
    """Return the packed destination address of a frame, 4 or 16 bytes.

    It is empty if the frame has no complete IPv4 or IPv6 header.
    """
    size = len(frame)
    if size < _IP + 20:
        return b""
    version = frame[_IP] >> 4
    if version == _VERSION_4:
        return frame[_DESTINATION_4]
    return frame[_DESTINATION_6] if version == _VERSION_6 and size >= _IP + 40 else b""


def measure_frame(frame: bytes) -> tuple[int, int, int]:
    """Return bytes on the wire, bytes of the first segment, and number of segments of a frame.

    The virtio header's `hdr_len` is only a hint (Linux stores the length of its linear part), so
    the header length is computed from the start of TCP and its data offset.
    """
    if not frame[_SEGMENTATION_TYPE]:
        size = len(frame) + PLAIN_BYTES
        return size, size, 1
    tcp = int.from_bytes(frame[_CHECKSUM_START], "little")
    headers = tcp + (frame[_IP + tcp + _TCP_DATA_OFFSET] >> 4) * 4
    segment = int.from_bytes(frame[_SEGMENT_SIZE], "little") or 1
    payload = len(frame) - _IP - headers
    # The division rounds up: the last segment may be short.
    segments = max(1, -(-payload // segment))
    wire = payload + segments * (headers + ETHERNET_BYTES)
    return wire, min(wire, segment + headers + ETHERNET_BYTES), segments

"""Frames as a TUN device with a virtio header hands them over: what they weigh on the wire and
where they go.

A frame is `struct virtio_net_hdr` (10 bytes, host byte order) and an IP packet, which may be a
super-packet of up to 64 KiB that stands for many segments (generic segmentation offload). On the
wire each segment has headers of its own; netem and HTB on an Ethernet device count those,
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
"""What a frame that is no super-packet weighs more on the wire than in memory."""

_SEGMENTATION_TYPE = 1
_SEGMENT_SIZE = slice(4, 6)
_CHECKSUM_START = slice(6, 8)
_TCP_DATA_OFFSET = 12


def parse_destination(frame: bytes) -> bytes:
    """The destination address as it stands in the frame, 4 or 16 bytes; empty where there is no
    complete IPv4 or IPv6 header.
    """
    size = len(frame)
    if size < _IP + 20:
        return b""
    version = frame[_IP] >> 4
    if version == _VERSION_4:
        return frame[_DESTINATION_4]
    return frame[_DESTINATION_6] if version == _VERSION_6 and size >= _IP + 40 else b""


def measure_frame(frame: bytes) -> tuple[int, int, int]:
    """Bytes on the wire, bytes of the first segment, and number of segments of a frame.

    The virtio header's own `hdr_len` is only a hint (Linux fills in what happens to be linear), so
    the header length comes from where TCP starts and its data offset.
    """
    if not frame[_SEGMENTATION_TYPE]:
        size = len(frame) + PLAIN_BYTES
        return size, size, 1
    tcp = int.from_bytes(frame[_CHECKSUM_START], "little")
    headers = tcp + (frame[_IP + tcp + _TCP_DATA_OFFSET] >> 4) * 4
    segment = int.from_bytes(frame[_SEGMENT_SIZE], "little") or 1
    payload = len(frame) - _IP - headers
    segments = max(1, -(-payload // segment))
    wire = payload + segments * (headers + ETHERNET_BYTES)
    return wire, min(wire, segment + headers + ETHERNET_BYTES), segments

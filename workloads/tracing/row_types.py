"""Types of the rows that the processes of a training stream: spans, steps, samples of links."""

from __future__ import annotations

import numpy as np

Rows = np.ndarray[tuple[int, ...], np.dtype[np.void]]

SPAN_ROW = np.dtype(
    [
        ("step", "i4"), ("rank", "i4"), ("lane", "i1"), ("phase", "i1"), ("seq", "i2"),
         ("start_ns", "i8"),
        ("dur_ns", "i8"), ("group", "i4"), ("peer", "i4"), ("bytes", "i8"), ("work", "i4"),
         ("flags", "u1"),
    ]
)  # fmt: skip
STEP_ROW = np.dtype(
    [
        ("step", "i4"), ("rank", "i4"), ("start_ns", "i8"), ("end_ns", "i8"), ("loss", "f8"),
         ("samples", "i4"),
        ("batch_size", "i4"), ("staleness", "i4"), ("dropped", "i4"), ("skipped", "i4"),
         ("read_version", "i4"),
        ("applied_version", "i4"), ("waited_for", "i4"),
    ]
)  # fmt: skip
LINK_ROW = np.dtype(
    [
        ("time_ns", "i8"), ("src", "i4"), ("dst", "i4"), ("src_port", "i4"), ("dst_port", "i4"),
         ("rtt_us", "i8"),
        ("min_rtt_us", "i8"), ("delivery_rate_bytes_per_s", "i8"), ("app_limited", "u1"),
         ("last_send_ms", "i8"),
        ("bytes_acked", "i8"), ("retransmits", "i8"), ("busy_us", "i8"), ("rwnd_limited_us", "i8"),
        ("sndbuf_limited_us", "i8"),
    ]
)  # fmt: skip

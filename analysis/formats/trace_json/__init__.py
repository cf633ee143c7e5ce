"""Bounded reading of traces in Chrome's JSON format, whose list of events may have gigabytes.

Read `event_stream.py` first: it parses the list in batches. `repair.py` mends what exporters are
known to break. This folder may import the core only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]

"""The Arrow schema of `requests.parquet`: one row per request of an inference."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def request_schema() -> pa.Schema:
    """Return the schema; times are virtual seconds since the start.

    `rank` is the device. `answered_s` is null for a request that was shed, and `deadline_s` without
    a deadline. `cut` is the number of blocks that the device computed, and `alone_s` what the
    request takes alone with this cut. `answers` is the number of models that the answer is from,
    and `feasible` whether any cut was expected to meet the deadline.
    """
    import pyarrow as pa

    return pa.schema(
        [
            ("rank", pa.int32()),
            ("request", pa.int32()),
            ("network", pa.int32()),
            ("arrived_s", pa.float64()),
            ("answered_s", pa.float64()),
            ("deadline_s", pa.float64()),
            ("cut", pa.int32()),
            ("computed_s", pa.float64()),
            ("link_s", pa.float64()),
            ("server_s", pa.float64()),
            ("alone_s", pa.float64()),
            ("correct", pa.int32()),
            ("samples", pa.int32()),
            ("answers", pa.int32()),
            ("feasible", pa.bool_()),
        ]
    )

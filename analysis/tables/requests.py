"""Requests of an inference, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.analysis.tables.columns import FloatArray, IntArray
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.stored_tables import TableFile
from laggard.core.errors import RunFolderError
from laggard.core.serving.request_schema import request_schema
from laggard.core.serving.serving_record import REQUESTS_FILE


@dataclass(frozen=True)
class RequestColumns:
    """Requests in the order of their arrivals, [requests] each; missing seconds are NaN.

    Attributes:
        rank: device.
        arrived_s: virtual time of the arrival.
        answered_s: virtual time of the answer.
        deadline_s: virtual seconds after the arrival.
    """

    rank: IntArray
    arrived_s: FloatArray
    answered_s: FloatArray
    deadline_s: FloatArray


def read_requests(run: RunData) -> RequestColumns:
    """Read the requests of a run; there are none without their file.

    Raises:
        RunFolderError: the file is damaged, or names a device that the run does not have.
    """
    path, schema = run.folder / REQUESTS_FILE, request_schema()
    table = TableFile(path, schema).read_all() if path.exists() else schema.empty_table()
    rank = table.column("rank").to_numpy().astype(np.int64)
    if len(rank) and not (rank.min() >= 0 and rank.max() < run.world_size):
        raise RunFolderError(f"{path}: a request is of none of the {run.world_size} devices")

    def seconds(name: str) -> FloatArray:
        values: FloatArray = table.column(name).to_numpy().astype(np.float64)
        return values

    return RequestColumns(rank, seconds("arrived_s"), seconds("answered_s"), seconds("deadline_s"))

"""The document of an inference in a run folder: figures of every device, as immutable values."""

from __future__ import annotations

from laggard.core.run_schema import Record

SERVING_FILE = "serving.json"
REQUESTS_FILE = "requests.parquet"


class LatencyParts(Record):
    """Mean seconds of a request at one device.

    Attributes:
        queue_s: waits for other requests, and for answers of neighbors.
        computed_s: the device's own blocks.
        link_s: on the link to the server and back.
        server_s: at the server, with its queue.
    """

    queue_s: float
    computed_s: float
    link_s: float
    server_s: float

    @property
    def total_s(self) -> float:
        """Return the mean latency."""
        return self.queue_s + self.computed_s + self.link_s + self.server_s


class DeviceService(Record):
    """Figures of one device; times in virtual seconds.

    Attributes:
        host: its host.
        tier: its tier.
        requests: number of requests that arrived.
        shed: number of those that were refused, since too many waited.
        hopeless: number of those for which no cut was expected to meet the deadline.
        latency_s: latency by percentile; empty if nothing was answered.
        parts: where the mean latency went; None if nothing was answered.
        violations: part of the requests that violated their deadline; None without deadlines.
        antt: mean latency as a multiple of the seconds alone; None if nothing was answered.
        accuracy: part of the samples whose answer was right; None if nothing was answered.
        answers: mean number of models that an answer is from.
        cuts: number of requests by the number of blocks that the device computed.
    """

    host: str
    tier: str
    requests: int
    shed: int
    hopeless: int
    latency_s: dict[int, float]
    parts: LatencyParts | None
    violations: float | None
    antt: float | None
    accuracy: float | None
    answers: float
    cuts: dict[int, int]


class ServingRecord(Record):
    """Figures of an inference: the content of `serving.json`.

    Attributes:
        devices: figures of every device.
    """

    devices: tuple[DeviceService, ...]

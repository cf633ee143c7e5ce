"""Watches the ranks of a remote training by what their nodes' agents tell: who died, who hangs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from laggard.errors import WorkerError
from laggard.experiments.hanging import Condition, HangWatch, told
from laggard.experiments.remote.crew import Crew
from laggard.experiments.remote.messages import (
    Beats,
    Done,
    Ended,
    FromAgent,
    Overran,
    Progress,
    RankBeat,
    Ready,
    Sampled,
    Scalar,
    Zero,
)
from laggard.experiments.remote.node_guards import NodeGuards
from laggard.experiments.supervise import BLAME_GRACE_S, is_victim
from laggard.workloads.heartbeat import PHASES, Beat

_POLL_S = 0.05


@dataclass
class RemoteWatch:
    """Looks after one training.

    Args:
        crew: the agents.
        hosts_by_rank: name of each rank's host.
        serves: whether there is a server, whose number follows the ranks'.
        bears_loss: whether training goes on without a rank that was killed.

    Attributes:
        guards: look at the nodes from the first step to the last.
        lost: ranks that were killed while training went on without them.
    """

    crew: Crew
    hosts_by_rank: Sequence[str]
    serves: bool = False
    bears_loss: bool = False
    lost: list[int] = field(default_factory=list)
    ready: set[int] = field(default_factory=set)
    zero_ns: int | None = None
    done: dict[str, Scalar] | None = None
    progress: list[dict[str, Scalar]] = field(default_factory=list)
    guards: NodeGuards = field(default_factory=NodeGuards)
    _beats: dict[int, tuple[float, RankBeat]] = field(default_factory=dict)
    _hang_watch: HangWatch = field(default_factory=HangWatch)
    _failed: list[tuple[str, Ended]] = field(default_factory=list)

    def check(self, timeout_s: float = _POLL_S) -> None:
        """Take in what has been told, waiting at most `timeout_s` seconds for something.

        Raises:
            WorkerError: a rank failed, hangs or is too big for its host; it names the one that
                caused it.
            DeploymentError: an agent is gone.
        """
        self._listen(timeout_s)
        if self._failed:
            deadline_s = time.monotonic() + BLAME_GRACE_S
            while (left_s := deadline_s - time.monotonic()) > 0:
                self._listen(left_s)
            raise self._death()
        if self.zero_ns is not None and self.done is None:
            self._check_hanging()

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until all ranks have met, and the server is there.

        Raises:
            WorkerError: one failed, or `timeout_s` seconds passed.
        """
        deadline_s = time.monotonic() + timeout_s
        world = len(self.hosts_by_rank)
        while missing := set(range(world + self.serves)) - self.ready:
            self.check()
            if time.monotonic() > deadline_s:
                rank = min(missing)
                if rank == world:
                    raise WorkerError(
                        f"the server did not begin within {timeout_s:.0f} s", -1, "the continuum"
                    )
                message = (
                    f"the workers did not meet within {timeout_s:.0f} s: {len(missing)} of them are"
                    " missing"
                )
                raise WorkerError(message, rank, self.hosts_by_rank[rank])

    def wait_zero(self, timeout_s: float) -> int:
        """When the first step began, reference clock; raises as `wait_ready`."""
        deadline_s = time.monotonic() + timeout_s
        while self.zero_ns is None:
            self.check()
            if time.monotonic() > deadline_s:
                raise WorkerError(
                    f"the first step did not begin within {timeout_s:.0f} s",
                    0,
                    self.hosts_by_rank[0],
                )
        return self.zero_ns

    def _listen(self, timeout_s: float) -> None:
        for news in self.crew.hear(timeout_s):
            self._take(news.host, news.message)

    def _take(self, host: str, message: FromAgent) -> None:
        if isinstance(message, Ready):
            self.ready.add(message.rank)
        elif isinstance(message, Zero):
            self.zero_ns = message.time_ns
            self.guards.begin()
        elif isinstance(message, Done):
            self.done = message.document
        elif isinstance(message, Progress):
            self.progress.extend(message.lines)
        elif isinstance(message, Beats):
            self._beats |= {beat.rank: (time.monotonic(), beat) for beat in message.beats}
        elif isinstance(message, Sampled):
            if self.done is None:
                self.guards.enter(host, message)
        elif isinstance(message, Overran):
            raise WorkerError(message.text, message.rank, host)
        elif isinstance(message, Ended) and message.status != 0 and not self._is_borne(message):
            self._failed.append((host, message))

    def _is_borne(self, ended: Ended) -> bool:
        """Whether training goes on: a rank was killed, another is left, and the strategy can do
        without it.
        """
        left = len(self.hosts_by_rank) - len(self.lost) - 1
        borne = (
            self.bears_loss
            and ended.rank >= 0
            and ended.status < 0
            and self.zero_ns is not None
            and left > 0
        )
        if borne:
            self.lost.append(ended.rank)
        return borne

    def _death(self) -> WorkerError:
        """The first to die of itself: what a peer's death does is an error about a connection, and
        exit status 1.
        """
        host, ended = min(
            self._failed, key=lambda each: (each[1].status > 0, is_victim(each[1].log_tail))
        )
        how = (
            f"killed by signal {-ended.status}"
            if ended.status < 0
            else f"exit status {ended.status}"
        )
        return WorkerError(f"{ended.name} died ({how})", ended.rank, host, ended.log_tail)

    def _check_hanging(self) -> None:
        now_s = time.monotonic()
        beats, now_ns = (
            tuple(self._as_beat(rank, now_s) for rank in range(len(self.hosts_by_rank))),
            round(now_s * 1e9),
        )
        beat = self._hang_watch.hung(beats, now_ns, self._condition)
        if beat is not None:
            raise WorkerError(
                f"rank {beat.rank} {told(beat, now_ns)}", beat.rank, self.hosts_by_rank[beat.rank]
            )

    def _condition(self, rank: int) -> Condition:
        if rank not in self._beats:
            return Condition(0.0, stopped=False)
        beat = self._beats[rank][1]
        return Condition(beat.cpu_s, beat.stopped)

    def _as_beat(self, rank: int, now_s: float) -> Beat:
        if (
            rank not in self._beats or rank in self.lost
        ):  # what one that is gone did last holds nobody up
            return Beat(rank, 0, PHASES[0], 0, 0)
        heard_s, beat = self._beats[rank]
        age_s = beat.age_s + now_s - heard_s
        return Beat(rank, beat.step, PHASES[beat.phase], round((now_s - age_s) * 1e9), 0)

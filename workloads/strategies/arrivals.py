"""What has come to a rank in one step, and which of it was waited for: where what is waited for is
not all that comes.
"""

from __future__ import annotations

from collections.abc import Callable

from laggard.span_schema import Phase
from laggard.workloads.learnt import NOBODY
from laggard.workloads.strategies.peers import Heard, Peers
from laggard.workloads.tracing.recorder import Recorder
from laggard.workloads.transport.frames import Message


class Arrivals:
    """Waits for peers, and records it.

    Args:
        peers: of this rank.
        recorder: told of waiting, and of what was carried.

    Attributes:
        unseen: whether the message that is being handed over had come before this rank began to
            listen.
    """

    def __init__(self, peers: Peers, recorder: Recorder) -> None:
        self._peers, self._recorder = peers, recorder
        self._came: list[Message] = []
        self.unseen = False

    def wait(self, until: Callable[[], bool], heard: Heard) -> tuple[bool, int]:
        """Listen until something is so; the message that made it so was waited for.

        Returns:
            Whether it is so (False: training is over), and the rank that was waited for, -1 for
            none.

        Raises:
            TransportError: as `Peers.wait` does.
        """
        since_ns = self._recorder.enter(Phase.COMM)
        last: Message | None = None

        def hear(message: Message) -> None:
            nonlocal last
            before = until()
            heard(message)
            self._came.append(message)
            if not before and until():
                last = message

        self.unseen = True
        self._peers.listen(hear)
        self.unseen = False
        so = self._peers.wait(until, hear)
        came, self._came = self._came, []
        if last is not None:
            return so, self._peers.tell_wait(
                since_ns, [*(each for each in came if each is not last), last]
            )
        if came:
            self._recorder.attribute(
                came[-1].sender, sum(message.payload_bytes for message in came)
            )
        return so, NOBODY

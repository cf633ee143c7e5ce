"""What has come to a rank in one step, and which of it was waited for: where what is waited for is
not all that comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from laggard.core.span_schema import Phase
from laggard.workloads.strategies.base.peer_connections import MessageHandler, PeerConnections
from laggard.workloads.tracing.step_result import NOBODY
from laggard.workloads.transport.frames import Message

if TYPE_CHECKING:
    from laggard.workloads.tracing.recorder import Recorder


class MessageWait:
    """Waits for peers, and records it.

    Args:
        peers: of this rank.
        recorder: told of waiting, and of what was carried.

    Attributes:
        was_queued: whether the message that is being handed over had come before this rank began to
            listen.
    """

    def __init__(self, peers: PeerConnections, recorder: Recorder) -> None:
        self._peers, self._recorder = peers, recorder
        self._received: list[Message] = []
        self.was_queued = False

    def wait(self, condition: Callable[[], bool], on_message: MessageHandler) -> tuple[bool, int]:
        """Listen until something is so; the message that made it so was waited for.

        Returns:
            Whether it is so (False: training is over), and the rank that was waited for, -1 for
            none.

        Raises:
            TransportError: as `PeerConnections.wait` does.
        """
        since_ns = self._recorder.enter(Phase.COMM)
        last: Message | None = None

        def handle_message(message: Message) -> None:
            nonlocal last
            before = condition()
            on_message(message)
            self._received.append(message)
            if not before and condition():
                last = message

        self.was_queued = True
        self._peers.listen(handle_message)
        self.was_queued = False
        is_met = self._peers.wait(condition, handle_message)
        received, self._received = self._received, []
        if last is not None:
            return is_met, self._peers.record_wait(
                since_ns, [*(each for each in received if each is not last), last]
            )
        if received:
            self._recorder.attribute(
                received[-1].sender, sum(message.payload_bytes for message in received)
            )
        return is_met, NOBODY

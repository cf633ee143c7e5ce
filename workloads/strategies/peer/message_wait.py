"""Wait of a rank in one step, when not every arriving message was waited for.

It finds the message that ended the wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from laggard.core.span_schema import NOBODY, Phase
from laggard.workloads.strategies.base.peer_connections import MessageHandler, PeerConnections
from laggard.workloads.transport.frames import Message

if TYPE_CHECKING:
    from laggard.workloads.tracing.recorder import Recorder


class MessageWait:
    """Waits for peers, and records each wait.

    Args:
        peers: connections of this rank.
        recorder: recorder that receives waits and payloads.

    Attributes:
        was_queued: whether the message being handled arrived before this rank began to listen.
    """

    def __init__(self, peers: PeerConnections, recorder: Recorder) -> None:
        self._peers, self._recorder = peers, recorder
        self._received: list[Message] = []
        self.was_queued = False

    def wait(self, condition: Callable[[], bool], on_message: MessageHandler) -> tuple[bool, int]:
        """Listen until a condition is met; the message that met it was waited for.

        Returns:
            Whether the condition is met (False: training is over), and the rank that was waited
            for, -1 for none.

        Raises:
            TransportError: see `PeerConnections.wait`.
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

        # First handle what has already arrived: its age says little about the link.
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

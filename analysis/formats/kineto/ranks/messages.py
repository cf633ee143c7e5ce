"""Messages between two ranks: sends and receives, matched by their order.

The k-th message that a rank sends to another in a step is the k-th that the other receives from it.
Its receiver waits for its sender. The sender waits for the receiver only if the trace shows that
sends block. Messages also show the stages of a pipeline.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from laggard.analysis.formats.import_run.clock_offsets import ClockAlignment
from laggard.analysis.formats.import_run.main_lane import (
    MIN_OVERLAP_NS,
    TraceSpan,
    find_work_end,
    split_exposed,
)
from laggard.analysis.formats.kineto.ranks.group_identities import RankSteps
from laggard.analysis.formats.kineto.step_trace import RankCollective, StepTrace
from laggard.core.span_schema import Flag, Phase

_NUMBERS_PER_MESSAGE = 4
_RECEIPT, _READINESS, _DELIVERY = 1, 2, 3
"""Numbers after that of a sender's post: its receiver's wait, the receiver's own post when it is
ready to receive, and the sender's wait for it."""
_MIN_DELAY_NS = 50_000
"""Least time by which a receiver is later than its sender that shows whether sends block."""
_CONTRADICTION_NS = 1_000_000
_CONTRADICTORY_SHARE = 0.05


@dataclass(frozen=True)
class RankMessage:
    """Message of one step: the `number`-th from rank `src` to rank `dst`."""

    step: int
    src: int
    dst: int
    number: int


@dataclass(frozen=True)
class Exchange:
    """One operation that sends and receives messages, as it blocks one rank in one step.

    Attributes:
        rank: rank of the job.
        sends: messages that the rank sends.
        receives: messages that it receives.
        ready_ns: time at which it has its messages ready, on the common clock.
        begins_ns: time from which it only waits for the operation, on its own clock.
        end_ns: end of the operation, on its own clock.
        over_ns: end of the operation, on the common clock.
        own_ready_ns: time at which it has its messages ready, on its own clock.
    """

    rank: int
    sends: tuple[RankMessage, ...]
    receives: tuple[RankMessage, ...]
    ready_ns: int
    begins_ns: int
    end_ns: int
    over_ns: int
    own_ready_ns: int


class MatchedMessages:
    """Messages of all ranks and steps.

    Args:
        steps: steps of every rank.
        clocks: offsets of the ranks' clocks.
    """

    def __init__(self, steps: RankSteps, clocks: ClockAlignment) -> None:
        self._clocks = clocks
        self._places = {rank: place for place, rank in enumerate(steps)}
        self.exchanges: dict[tuple[int, int], tuple[Exchange, ...]] = {
            (rank, number): tuple(self._list_exchanges(rank, step))
            for rank, own in steps.items()
            for number, step in own.items()
        }
        all_exchanges = [each for own in self.exchanges.values() for each in own]
        self._sent = {message: each for each in all_exchanges for message in each.sends}
        self._received = {message: each for each in all_exchanges for message in each.receives}
        channels = sorted({(each.src, each.dst, each.number) for each in self._sent})
        self._numbers = {key: _NUMBERS_PER_MESSAGE * n for n, key in enumerate(channels)}
        self._sends_block = self._find_whether_sends_block()
        self.lacks_peers = any(
            each.is_point_to_point and not each.messages
            for own in steps.values()
            for step in own.values()
            for each in step.collectives
        )

    @property
    def unmatched(self) -> int:
        """Return the number of messages of which only one end was recorded."""
        return len(set(self._sent) ^ set(self._received))

    @property
    def are_contradictory(self) -> bool:
        """Return whether many messages seem to be received before they are sent."""
        both = set(self._sent) & set(self._received)
        early = sum(
            self._received[each].over_ns < self._sent[each].ready_ns - _CONTRADICTION_NS
            for each in both
        )
        return early > _CONTRADICTORY_SHARE * len(both)

    @cached_property
    def are_known(self) -> bool:
        """Return whether all messages are matched, so that they can be replayed."""
        return not (self.lacks_peers or self.unmatched or self.are_contradictory)

    def find_stages(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Return the pipeline stage of each rank, or nothing if there is only one.

        The first stage begins with a send, and every other one with a receive from the stage
        before it.

        Args:
            ranks: ranks of the job.
        """
        senders: dict[int, int] = {}
        for (rank, _), own in sorted(self.exchanges.items(), key=lambda item: item[0][1]):
            if own and rank not in senders:
                starts_by_sending = own[0].sends or not own[0].receives
                senders[rank] = rank if starts_by_sending else own[0].receives[0].src
        stages = []
        for rank in ranks:
            path = [rank]
            while senders.get(path[-1], path[-1]) not in path:
                path.append(senders[path[-1]])
            stages.append(len(path) - 1)
        return tuple(stages) if any(stages) else ()

    def list_spans(self, rank: int, step: int, first_number: int) -> Iterator[TraceSpan]:
        """Yield the posts of a rank in a step, and its waits for messages.

        Args:
            rank: rank of the job.
            step: number of the step.
            first_number: least number of a barrier of messages.
        """
        own = self.exchanges[rank, step]
        for each in own:
            posted = [(message, 0, message.dst) for message in each.sends]
            if self._sends_block:
                posted += [(message, _READINESS, message.src) for message in each.receives]
            for message, kind, peer in posted:
                yield TraceSpan(
                    Phase.COMM,
                    each.own_ready_ns,
                    each.own_ready_ns,
                    group=first_number + self._get_number(message) + kind,
                    peer=self._places[peer],
                    flags=Flag.ASYNC,
                )
        for each in own:
            yield from self._list_waits(each, first_number)

    def _list_waits(self, exchange: Exchange, first_number: int) -> Iterator[TraceSpan]:
        """Yield waits that end with the posts that they wait for; the last one has the transfer.

        If none of the peers is in the traces, the whole wait is a transfer.
        """
        if not exchange.sends and not exchange.receives:
            yield TraceSpan(Phase.COMM, exchange.begins_ns, exchange.end_ns)
        awaited = [
            (self._sent[message].ready_ns, _RECEIPT, message, message.src)
            for message in exchange.receives
        ]
        if self._sends_block:
            awaited += [
                (self._received[message].ready_ns, _DELIVERY, message, message.dst)
                for message in exchange.sends
            ]
        ahead_ns = exchange.end_ns - exchange.over_ns
        at_ns = exchange.begins_ns
        awaited.sort(key=lambda each: each[:2])
        for place, (ready_ns, kind, message, peer) in enumerate(awaited):
            until_ns = exchange.end_ns
            if place < len(awaited) - 1:
                until_ns = min(max(ready_ns + ahead_ns, at_ns), until_ns)
            number = first_number + self._get_number(message) + kind
            yield TraceSpan(Phase.COMM, at_ns, until_ns, group=number, peer=self._places[peer])
            at_ns = until_ns

    def _get_number(self, message: RankMessage) -> int:
        return self._numbers[message.src, message.dst, message.number]

    def _list_exchanges(self, rank: int, step: StepTrace) -> Iterator[Exchange]:
        counts: dict[tuple[int, int], int] = {}
        if not any(each.messages for each in step.collectives):
            return
        waited_until = [0]
        for each in step.collectives:
            exposed = _find_exposed(step, each)
            work_end_ns = find_work_end(step.work, each.start_ns)
            ended = bisect_right(waited_until, each.start_ns + MIN_OVERLAP_NS)
            ready_ns = max(work_end_ns, waited_until[max(ended - 1, 0)])
            ready_ns = min(ready_ns or each.start_ns, each.start_ns)
            if exposed.end_ns > exposed.start_ns:
                insort(waited_until, exposed.end_ns)
            if not each.messages:
                continue
            sends: list[RankMessage] = []
            receives: list[RankMessage] = []
            for end in each.messages:
                if end.peer not in self._places:
                    continue
                src, dst = (rank, end.peer) if end.is_send else (end.peer, rank)
                number = counts.get((src, dst), 0)
                counts[src, dst] = number + 1
                message = RankMessage(step.window.step, src, dst, number)
                (sends if end.is_send else receives).append(message)
            correct = self._clocks.offsets[rank].correct
            yield Exchange(
                rank=rank,
                sends=tuple(sends),
                receives=tuple(receives),
                ready_ns=correct(ready_ns),
                begins_ns=exposed.start_ns,
                end_ns=exposed.end_ns,
                over_ns=correct(exposed.end_ns),
                own_ready_ns=ready_ns,
            )

    def _find_whether_sends_block(self) -> bool:
        """Return whether senders usually waited for receivers that were later than they.

        Operations that also receive wait in any case, so they count only if there are no others.
        """
        only_sent: list[bool] = []
        exchanged: list[bool] = []
        for message, sent in self._sent.items():
            received = self._received.get(message)
            if received is None or received.ready_ns - sent.ready_ns < _MIN_DELAY_NS:
                continue
            waited = sent.end_ns > sent.begins_ns
            waited = waited and sent.over_ns >= received.ready_ns - MIN_OVERLAP_NS
            (exchanged if sent.receives else only_sent).append(waited)
        votes = only_sent or exchanged
        return 2 * sum(votes) > len(votes)


def _find_exposed(step: StepTrace, operation: RankCollective) -> TraceSpan:
    end_ns = min(operation.end_ns, step.latest_end_ns(operation.start_ns))
    whole = TraceSpan(Phase.COMM, operation.start_ns, max(end_ns, operation.start_ns))
    return split_exposed(whole, step.busy)[0]

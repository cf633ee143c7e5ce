"""What strategies have in common whose ranks train while a thread beside exchanges their models."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from laggard.span_schema import Phase
from laggard.workloads.account import Account
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.learnt import Learnt
from laggard.workloads.partition import Share
from laggard.workloads.strategies.among_peers import AmongPeers
from laggard.workloads.strategies.current_model import CurrentModel, Reading
from laggard.workloads.strategies.peers import BESIDE_WAIT_S, Standing
from laggard.workloads.strategies.strategy import Seat
from laggard.workloads.transport.frames import Message


class BesideTraining(AmongPeers, ABC):
    """A rank that reads its model, learns from it, and puts what it has learnt into the model as
    others have made it meanwhile.

    How many updates by others lie between is the staleness. The lock is held for no longer than two
    vectors are added.

    Args:
        seat: what it trains with.

    Attributes:
        account: with the referee, whom the thread beside answers; None where nobody asks.
    """

    account: Account | None = None

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat)
        self._current = CurrentModel(self._state.read().cpu())
        self._held = self._current.reading
        self._lock = threading.Lock()
        self._there = set(self._peers.present)
        self._begun = False
        self._peers.resident = self

    def join(self) -> None:
        """Take up the model of one who is there, and begin with the step that it is in (see
        `OwnPaceStrategy`).
        """
        standing = self._peers.join()
        if standing is not None:
            self._step, model = standing
            self._current.replace(model)
            self._hold(self._current.reading)
            self._there = set(self._peers.present)
            self._meet({self._seat.rank, *self._there})

    def standing(self) -> Standing:
        """This step, and the model as it is now (see `Resident`)."""
        return self._step, self._current.reading.model

    def admit(self, rank: int, step: int) -> None:  # noqa: ARG002 - each is in a step of its own
        """Exchange models with it from now on (see `Resident`)."""
        with self._lock:
            self._there.add(rank)
            self._note_arrival(rank)

    def step(self, step: int, batch: Batch, share: Share) -> Learnt:
        """Read, forward, backward, update; the thread beside is told (see `OwnPaceStrategy`)."""
        recorder = self._seat.recorder
        if not self._begun:
            self._begun = True
            self._peers.beside(self._take_turn)
        recorder.enter(Phase.OTHER)
        with self._model_to_itself():
            read = self._current.reading
        self._hold(read)
        loss = self._gradient.learn(batch, share)
        learnt = self._state.read().cpu()
        recorder.enter(Phase.OTHER)
        with self._model_to_itself():
            after = self._current.learn(read, learnt)
            self._note_step(len(share.indices))
        staleness = after.version - 1 - read.version
        if staleness:
            self._hold(after)
        else:
            self._held = after
        self._peers.wake()
        self._step = step + 1
        return Learnt(
            loss, read_version=read.version, applied_version=after.version, staleness=staleness
        )

    @contextmanager
    def _model_to_itself(self) -> Iterator[None]:
        """Only where the lock is taken is there communication to wait for."""
        if not self._lock.acquire(blocking=False):
            self._seat.recorder.enter(Phase.COMM)
            self._lock.acquire()
            self._seat.recorder.enter(Phase.OTHER)
        try:
            yield
        finally:
            self._lock.release()

    def _hold(self, reading: Reading) -> None:
        """Make the model that this rank computes with what was read."""
        if reading.version != self._held.version:
            self._state.write(reading.model.to(self._seat.device))
        self._held = reading

    def _take_turn(self) -> None:
        """What the thread beside does: it hears, notes who is gone, and exchanges what is to be
        exchanged.
        """
        self._peers.listen(self._hear, BESIDE_WAIT_S)
        if self.account is not None:
            self.account.answer(lambda: self._current.reading.model)
        with self._lock:
            for rank in self._there - self._peers.present:
                self._there.remove(rank)
                self._note_loss(rank)
        self._exchange_models()

    @abstractmethod
    def _note_step(self, samples: int) -> None:
        """The rank has finished a step of so many samples; the lock is held."""

    @abstractmethod
    def _meet(self, there: Collection[int]) -> None:
        """These ranks are there, this one among them, which has just come."""

    @abstractmethod
    def _note_arrival(self, rank: int) -> None:
        """Another one is there, after all or again; the lock is held, by the thread beside."""

    @abstractmethod
    def _note_loss(self, rank: int) -> None:
        """Another one is gone, and all that it had sent has been heard; the lock is held, by the
        thread beside.
        """

    @abstractmethod
    def _exchange_models(self) -> None:
        """After the thread beside has heard what there is."""

    @abstractmethod
    def _hear(self, message: Message) -> None:
        """Another one's message; in the thread beside."""

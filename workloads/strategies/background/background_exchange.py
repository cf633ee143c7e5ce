"""Base of strategies that exchange models in a background thread."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from laggard.core.span_schema import Phase
from laggard.workloads.strategies.background.current_model import CurrentModel, ModelVersion
from laggard.workloads.strategies.base.peer_connections import BACKGROUND_POLL_S, JoinState
from laggard.workloads.strategies.base.peer_strategy_base import PeerStrategyBase
from laggard.workloads.tracing.step_result import StepResult
from laggard.workloads.transport.frames import Message

if TYPE_CHECKING:
    from laggard.workloads.coordination.progress_reporter import ProgressReporter
    from laggard.workloads.datasets.dataset import Batch
    from laggard.workloads.datasets.partition import Share
    from laggard.workloads.strategies.base.strategy import TrainingContext


class BackgroundExchange(PeerStrategyBase, ABC):
    """A rank that reads its model, learns from it, and puts what it has learned into the model as
    others have made it meanwhile.

    How many updates by others lie between is the staleness. The lock is held for no longer than two
    vectors are added.

    Args:
        context: what it trains with.

    Attributes:
        progress_reporter: with the coordinator, whom the thread beside answers; None where nobody
            asks.
    """

    progress_reporter: ProgressReporter | None = None

    def __init__(self, context: TrainingContext) -> None:
        super().__init__(context)
        self._current = CurrentModel(self._state.read().cpu())
        self._loaded = self._current.latest
        self._lock = threading.Lock()
        self._present = set(self._peers.present)
        self._has_thread = False
        self._peers.join_handler = self

    def join(self) -> None:
        """Take up the model of one who is there, and begin with the step that it is in (see
        `AsyncStrategy`).
        """
        join_state = self._peers.join()
        if join_state is not None:
            self._step, model = join_state
            self._current.replace(model)
            self._load_model(self._current.latest)
            self._present = set(self._peers.present)
            self._reset_members({self._context.rank, *self._present})

    def join_state(self) -> JoinState:
        """This step, and the model as it is now (see `JoinHandler`)."""
        return self._step, self._current.latest.model

    # Each is in a step of its own.
    def add_member(self, rank: int, step: int) -> None:  # noqa: ARG002
        """Exchange models with it from now on (see `JoinHandler`)."""
        with self._lock:
            self._present.add(rank)
            self._on_member_joined(rank)

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:
        """Read, forward, backward, update; the thread beside is told (see `AsyncStrategy`)."""
        recorder = self._context.recorder
        if not self._has_thread:
            self._has_thread = True
            self._peers.start_background_thread(self._run_turn)
        recorder.enter(Phase.OTHER)
        with self._locked_model():
            read = self._current.latest
        self._load_model(read)
        loss = self._gradient.learn(batch, share)
        updated = self._state.read().cpu()
        recorder.enter(Phase.OTHER)
        with self._locked_model():
            after = self._current.learn(read, updated)
            self._on_step_done(len(share.indices))
        staleness = after.version - 1 - read.version
        if staleness:
            self._load_model(after)
        else:
            self._loaded = after
        self._peers.wake()
        self._step = step + 1
        return StepResult(
            loss, read_version=read.version, applied_version=after.version, staleness=staleness
        )

    @contextmanager
    def _locked_model(self) -> Iterator[None]:
        """Only where the lock is taken is there communication to wait for."""
        if not self._lock.acquire(blocking=False):
            self._context.recorder.enter(Phase.COMM)
            self._lock.acquire()
            self._context.recorder.enter(Phase.OTHER)
        try:
            yield
        finally:
            self._lock.release()

    def _load_model(self, model_version: ModelVersion) -> None:
        """Make the model that this rank computes with what was read."""
        if model_version.version != self._loaded.version:
            self._state.write(model_version.model.to(self._context.device))
        self._loaded = model_version

    def _run_turn(self) -> None:
        """What the thread beside does: it hears, notes who is gone, and exchanges what is to be
        exchanged.
        """
        self._peers.listen(self._on_message, BACKGROUND_POLL_S)
        if self.progress_reporter is not None:
            self.progress_reporter.answer(lambda: self._current.latest.model)
        with self._lock:
            for rank in self._present - self._peers.present:
                self._present.remove(rank)
                self._on_member_lost(rank)
        self._exchange_models()

    @abstractmethod
    def _on_step_done(self, samples: int) -> None:
        """Handle the end of a step of so many samples; the lock is held."""

    @abstractmethod
    def _reset_members(self, present: Collection[int]) -> None:
        """These ranks are there, this one among them, which has just come."""

    @abstractmethod
    def _on_member_joined(self, rank: int) -> None:
        """Another one is there, after all or again; the lock is held, by the thread beside."""

    @abstractmethod
    def _on_member_lost(self, rank: int) -> None:
        """Another one is gone, and all that it had sent has been heard; the lock is held, by the
        thread beside.
        """

    @abstractmethod
    def _exchange_models(self) -> None:
        """After the thread beside has heard what there is."""

    @abstractmethod
    def _on_message(self, message: Message) -> None:
        """Another one's message; in the thread beside."""

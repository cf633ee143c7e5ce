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
    """Rank that trains on a copy of its model while a background thread exchanges the model.

    In each step the rank reads its model, computes an update, and applies the update to the model
    as others have changed it meanwhile. The staleness of a step is the number of updates by others
    in between. The lock is held only while two vectors are added.

    Args:
        context: training context of the rank.

    Attributes:
        progress_reporter: reporter through which the background thread answers the coordinator's
            requests for models; None without a coordinator.
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
        """Copy the model of a present rank and begin with its step (see `AsyncStrategy`)."""
        join_state = self._peers.join()
        if join_state is not None:
            self._step, model = join_state
            self._current.replace(model)
            self._load_model(self._current.latest)
            self._present = set(self._peers.present)
            self._reset_members({self._context.rank, *self._present})

    def join_state(self) -> JoinState:
        """Return this step and the current model (see `JoinHandler`)."""
        return self._step, self._current.latest.model

    # The step of the rank does not matter: ranks need no common steps.
    def add_member(self, rank: int, step: int) -> None:  # noqa: ARG002
        """Exchange models with a rank from now on (see `JoinHandler`)."""
        with self._lock:
            self._present.add(rank)
            self._on_member_joined(rank)

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:
        """Train on one batch and wake the background thread (see `AsyncStrategy`)."""
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
        # One of the new versions is this rank's own update.
        staleness = after.version - 1 - read.version
        # Without updates by others, the module already contains the new version.
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
        """Hold the lock; record the wait for it, if any, as communication."""
        if not self._lock.acquire(blocking=False):
            self._context.recorder.enter(Phase.COMM)
            self._lock.acquire()
            self._context.recorder.enter(Phase.OTHER)
        try:
            yield
        finally:
            self._lock.release()

    def _load_model(self, model_version: ModelVersion) -> None:
        """Load a version of the model into the module that computes, unless it is loaded."""
        if model_version.version != self._loaded.version:
            self._state.write(model_version.model.to(self._context.device))
        self._loaded = model_version

    def _run_turn(self) -> None:
        """Run one turn of the background thread.

        It handles messages, answers the coordinator, removes lost ranks, and exchanges models.
        """
        self._peers.listen(self._on_message, BACKGROUND_POLL_S)
        if self.progress_reporter is not None:
            self.progress_reporter.answer(lambda: self._current.latest.model)
        # After listening, so that the last messages of a lost rank have been handled.
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
        """Begin with these present ranks, including this one, which has just joined."""

    @abstractmethod
    def _on_member_joined(self, rank: int) -> None:
        """Add a rank; called by the background thread, with the lock held."""

    @abstractmethod
    def _on_member_lost(self, rank: int) -> None:
        """Remove a rank that is gone, after all its messages have been handled.

        The background thread calls it, with the lock held.
        """

    @abstractmethod
    def _exchange_models(self) -> None:
        """Exchange models, if due; called by the background thread in each turn."""

    @abstractmethod
    def _on_message(self, message: Message) -> None:
        """Handle a message of another rank; called by the background thread."""

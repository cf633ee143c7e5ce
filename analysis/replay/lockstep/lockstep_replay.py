"""Makespan with causes removed, and each cause's share of their joint cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.replay.lockstep.cause_removal import LinkRemoval, RemovalPlan
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray
from laggard.core.contribution.shapley import MAX_EXACT_PLAYERS, compute_shapley
from laggard.core.simulation.maxplus import (
    Blocks,
    Schedule,
    compute_block_seconds,
    compute_makespan,
    select_entering_transfers,
    split_blocks,
)

# Cells (coalitions x barriers x ranks) evaluated at once; 32 MB per array of float64.
_MAX_CELLS = 4_000_000
# Smallest share of its usual time to which a collective can shrink when slow links are repaired.
_MIN_FACTOR = 0.02


@dataclass(frozen=True)
class LockstepReplay:
    """Replay of a run without any subset of its causes."""

    schedule: Schedule
    removals: RemovalPlan

    def makespan(self, removed: BoolArray) -> float:
        """Return the makespan in virtual seconds with the marked causes, [causes], removed."""
        return compute_makespan(self.schedule_without(removed))

    def schedule_without(self, removed: BoolArray) -> Schedule:
        """Return the durations that remain with the marked causes, [causes], removed."""
        local, transfer = self.schedule.local.copy(), self.schedule.transfer
        for removal in self.removals.local:
            if removed[list(removal.causes)].all():
                rows = np.s_[removal.first : removal.first + len(removal.seconds)]
                local[rows, removal.rank] -= removal.seconds
        np.maximum(local, 0.0, out=local)
        factor = self._compute_factor(np.arange(len(local))[None, :], removed[None, None])[0, 0]
        if (factor != 1.0).any():
            transfer = transfer * factor[:, None]
        return replace(self.schedule, local=local, transfer=transfer)

    def costs(self, seed: int) -> FloatArray:
        """Return each cause's Shapley share of T - T(all removed), in virtual seconds, [causes]."""
        rng = np.random.default_rng(seed)
        count = len(self.removals.affected)
        shares = np.zeros(count)
        # Only the causes that act on a block are players there. The others have no effect, so
        # their Shapley value is 0, and most blocks are small enough for exact enumeration.
        alike = tuple(self._group_blocks())
        drawn_for = sum(
            len(blocks.barriers) for blocks, active in alike if len(active) > MAX_EXACT_PLAYERS
        )
        for blocks, active in alike:
            if not len(active):
                continue
            for part in blocks.parts(
                _MAX_CELLS // (self.schedule.local.shape[1] * _count_coalitions(len(active)))
            ):
                shares[active] += self._compute_shares(part, active, rng, drawn_for)
        return shares

    def _compute_shares(
        self, blocks: Blocks, active: IntArray, rng: np.random.Generator, drawn_for: int
    ) -> FloatArray:
        count = len(self.removals.affected)

        def game(members: BoolArray) -> FloatArray:
            removed = np.zeros((*members.shape[:2], count), dtype=np.bool_)
            removed[:, :, active] = members
            # A run without a barrier of all ranks is one long block.
            cells = blocks.barriers.size * self.schedule.local.shape[1]
            at_once = max(1, _MAX_CELLS // cells)
            return np.concatenate(
                [
                    self._compute_seconds(blocks, removed[begin : begin + at_once])
                    for begin in range(0, len(removed), at_once)
                ]
            )

        return compute_shapley(game, len(active), len(blocks.barriers), rng, total_blocks=drawn_for)

    def _group_blocks(self) -> Iterator[tuple[Blocks, IntArray]]:
        """Yield groups of blocks of one length that the same causes act on, with these causes."""
        for blocks in split_blocks(self.schedule.depends):
            touched = self._find_acting_causes(blocks)
            for pattern in np.unique(touched, axis=0):
                same = np.logical_and.reduce(touched == pattern, axis=1)
                yield Blocks(blocks.barriers[same]), np.flatnonzero(pattern)

    def _find_acting_causes(self, blocks: Blocks) -> BoolArray:
        """Return a mask of the causes that act on each block, [B, causes]."""
        touched: BoolArray = np.logical_or.reduce(
            self.removals.affected[:, blocks.barriers], axis=2
        )
        return touched.T

    def _compute_seconds(self, blocks: Blocks, removed: BoolArray) -> FloatArray:
        """Return the seconds of each block, [C, B], with causes removed, [C, B or 1, causes]."""
        at = blocks.barriers
        local = np.broadcast_to(
            self.schedule.local[at], (len(removed), *at.shape, self.schedule.local.shape[1])
        ).copy()
        for removal in self.removals.local:
            is_removed = _are_all_removed(removed, removal.causes)
            local[..., removal.rank] -= is_removed[:, :, None] * removal.seconds_at(at)
        np.maximum(local, 0.0, out=local)
        transfer = select_entering_transfers(self.schedule.transfer, at)
        transfer = transfer * self._compute_factor(at - 1, removed)[..., None]
        return compute_block_seconds(blocks, local, transfer, self.schedule)

    def _compute_factor(self, at: IntArray, removed: BoolArray) -> FloatArray:
        """Return factors on the transfers at the barriers `at`, [B, L], as [C, B, L]."""
        factor = np.ones((*removed.shape[:2], at.shape[1]))
        for removal in self.removals.transfer:
            is_removed = _are_all_removed(removed, removal.causes)
            factor = factor * np.where(is_removed[:, :, None], removal.factor[at], 1.0)
        if self.removals.links is not None:
            link_factor = _compute_link_factor(self.removals.links, removed)
            factor = factor * np.where(
                self.removals.links.affected[at], link_factor[:, :, None], 1.0
            )
        return factor


def _are_all_removed(removed: BoolArray, causes: tuple[int, ...]) -> BoolArray:
    is_removed: BoolArray = np.logical_and.reduce(removed[:, :, list(causes)], axis=2)
    return is_removed


def _compute_link_factor(links: LinkRemoval, removed: BoolArray) -> FloatArray:
    """Return the factor on a collective's usual transfer once slow links are repaired, [C, B].

    A repaired link runs at its reference rate. The collective moves at the pace of its busiest
    link.
    """
    is_removed = removed[:, :, list(links.causes)]
    busiest = np.maximum(
        np.where(is_removed, links.needed_s, links.busy_s).max(axis=2), links.others_s
    )
    before = max(float(links.busy_s.max()), links.others_s)
    link_factor: FloatArray = np.maximum(1.0 - (before - busiest) / links.usual_s, _MIN_FACTOR)
    return link_factor


def _count_coalitions(players: int) -> int:
    return 1 << players if players <= MAX_EXACT_PLAYERS else players + 1

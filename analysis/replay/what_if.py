"""The makespan with causes removed, and each cause's share of what they cost together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from laggard.analysis.columns import BoolArray, FloatArray, IntArray
from laggard.analysis.replay.maxplus import Blocks, Schedule, block_seconds, split_blocks
from laggard.analysis.replay.relief import LinkRelief, Reliefs
from laggard.analysis.replay.timeline import ROWS_AT_ONCE
from laggard.analysis.shapley import EXACT_PLAYERS, shapley

_CELLS_AT_ONCE = 4_000_000
_LEAST_FACTOR = 0.02


@dataclass(frozen=True)
class WhatIf:
    """A run that can be replayed without some of its causes."""

    schedule: Schedule
    reliefs: Reliefs

    def makespan(self, removed: BoolArray) -> float:
        """Virtual seconds with the marked causes removed, [causes]."""
        return float(
            sum(
                self._seconds(part, removed[None, None, :]).sum()
                for blocks in split_blocks(self.schedule.depends)
                for part in blocks.parts(ROWS_AT_ONCE)
            )
        )

    def costs(self, seed: int) -> FloatArray:
        """Each cause's Shapley share of T - T(all removed), in virtual seconds, [causes]."""
        rng = np.random.default_rng(seed)
        count = len(self.reliefs.acts)
        shares = np.zeros(count)
        alike = tuple(self._alike())
        drawn_for = sum(
            len(blocks.barriers) for blocks, active in alike if len(active) > EXACT_PLAYERS
        )
        for blocks, active in alike:
            if not len(active):
                continue
            for part in blocks.parts(
                _CELLS_AT_ONCE // (self.schedule.local.shape[1] * _coalitions(len(active)))
            ):
                shares[active] += self._shares(part, active, rng, drawn_for)
        return shares

    def _shares(
        self, blocks: Blocks, active: IntArray, rng: np.random.Generator, drawn_for: int
    ) -> FloatArray:
        count = len(self.reliefs.acts)

        def game(members: BoolArray) -> FloatArray:
            removed = np.zeros((*members.shape[:2], count), dtype=np.bool_)
            removed[:, :, active] = members
            return self._seconds(blocks, removed)

        return shapley(game, len(active), len(blocks.barriers), rng, in_all=drawn_for)

    def _alike(self) -> Iterator[tuple[Blocks, IntArray]]:
        """Blocks of one length on which the same causes act."""
        for blocks in split_blocks(self.schedule.depends):
            touched = self._touched(blocks)
            for pattern in np.unique(touched, axis=0):
                same = np.logical_and.reduce(touched == pattern, axis=1)
                yield Blocks(blocks.barriers[same]), np.flatnonzero(pattern)

    def _touched(self, blocks: Blocks) -> BoolArray:
        """Which causes act on each block, [B, causes]."""
        touched: BoolArray = np.logical_or.reduce(self.reliefs.acts[:, blocks.barriers], axis=2)
        return touched.T

    def _seconds(self, blocks: Blocks, removed: BoolArray) -> FloatArray:
        """Seconds of each block, [C, B], with causes removed, [C, B or 1, causes]."""
        at = blocks.barriers
        local = np.broadcast_to(
            self.schedule.local[at], (len(removed), *at.shape, self.schedule.local.shape[1])
        ).copy()
        for relief in self.reliefs.local:
            gone = _all_gone(removed, relief.causes)
            local[..., relief.rank] -= gone[:, :, None] * relief.at(at)
        np.maximum(local, 0.0, out=local)
        transfer = np.where((at > 0)[..., None], self.schedule.transfer[at - 1], 0.0)
        transfer = transfer * self._factor(at - 1, removed)[..., None]
        return block_seconds(blocks, local, transfer, self.schedule)

    def _factor(self, at: IntArray, removed: BoolArray) -> FloatArray:
        """What the transfers at barriers `at`, [B, L], shrink to, [C, B, L]."""
        factor = np.ones((*removed.shape[:2], at.shape[1]))
        for relief in self.reliefs.transfer:
            gone = _all_gone(removed, relief.causes)
            factor = factor * np.where(gone[:, :, None], relief.factor[at], 1.0)
        if self.reliefs.links is not None:
            pace = _pace(self.reliefs.links, removed)
            factor = factor * np.where(self.reliefs.links.acts[at], pace[:, :, None], 1.0)
        return factor


def _all_gone(removed: BoolArray, causes: tuple[int, ...]) -> BoolArray:
    gone: BoolArray = np.logical_and.reduce(removed[:, :, list(causes)], axis=2)
    return gone


def _pace(links: LinkRelief, removed: BoolArray) -> FloatArray:
    """Factor on a collective's usual transfer when some slow links run at the reference rate, [C,
    B].
    """
    gone = removed[:, :, list(links.causes)]
    busiest = np.maximum(np.where(gone, links.needed_s, links.busy_s).max(axis=2), links.others_s)
    before = max(float(links.busy_s.max()), links.others_s)
    pace: FloatArray = np.maximum(1.0 - (before - busiest) / links.usual_s, _LEAST_FACTOR)
    return pace


def _coalitions(players: int) -> int:
    return 1 << players if players <= EXACT_PLAYERS else players + 1

"""Problem of a plan: the blocks of a model, the devices, and the links between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from laggard.core.cost_model.demand import require_quantity
from laggard.core.cost_model.links import NetworkHop
from laggard.core.cost_model.message_handling import DEFAULT_HANDLING, MessageHandling
from laggard.core.errors import InputError
from laggard.core.simulation.network import FRAMING_OVERHEAD


@dataclass(frozen=True)
class AffineSeconds:
    """Seconds of a pass through a block: a fixed part, and one for each sample."""

    fixed_s: float
    sample_s: float

    def __post_init__(self) -> None:
        require_quantity("fixed_s", self.fixed_s, "give 0 for none")
        require_quantity("sample_s", self.sample_s, "give 0 for none")

    def of(self, samples: float) -> float:
        """Return the seconds of a pass with some samples."""
        return self.fixed_s + self.sample_s * samples

    def plus(self, other: AffineSeconds) -> AffineSeconds:
        """Return the seconds of both, one after another."""
        return AffineSeconds(self.fixed_s + other.fixed_s, self.sample_s + other.sample_s)

    def scaled(self, factor: float) -> AffineSeconds:
        """Return the seconds on a device that is slower by a factor."""
        return AffineSeconds(self.fixed_s * factor, self.sample_s * factor)


@dataclass(frozen=True)
class ModelBlock:
    """Operations of a model that stay together.

    Attributes:
        name: name of the block.
        parameter_bytes: bytes of its parameters.
        saved_bytes: bytes that the backward pass of one sample needs from the forward pass.
        update_s: seconds of an update of its parameters, on a whole core.
    """

    name: str
    parameter_bytes: float
    saved_bytes: float = 0.0
    update_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("parameter_bytes", "saved_bytes", "update_s"):
            require_quantity(f"{self.name}: {name}", getattr(self, name), "give 0 for none")


@dataclass(frozen=True)
class BlockEdge:
    """Output of one block that another one reads.

    Attributes:
        src: number of the block that writes it.
        dst: number of a later block.
        sample_bytes: bytes of one sample, and of its gradient on the way back.
    """

    src: int
    dst: int
    sample_bytes: float


@dataclass(frozen=True)
class PlanDevice:
    """Device that can compute blocks.

    Attributes:
        name: its name.
        forward: seconds of a forward pass through each block.
        backward: seconds of a backward pass through each block.
        memory_bytes: memory for parameters, gradients, optimizer and saved tensors; None for no
            limit.
        share: share of a core that handles its messages.
    """

    name: str
    forward: tuple[AffineSeconds, ...]
    backward: tuple[AffineSeconds, ...]
    memory_bytes: float | None = None
    share: float = 1.0

    def speed(self, samples: float) -> float:
        """Return the steps per second of the whole model with some samples."""
        seconds = sum(each.of(samples) for each in (*self.forward, *self.backward))
        return 1 / seconds if seconds else math.inf


@dataclass(frozen=True)
class PlanningProblem:
    """Model and continuum of a plan.

    Attributes:
        blocks: blocks of the model, in an order in which they can be computed.
        edges: outputs that pass between blocks.
        devices: the devices.
        links: link from one device to another; one that is missing cannot be used.
        batch: samples of a step.
        optimizer_copies: further copies of the parameters that the optimizer has, such as 1 for
            momentum.
        handling: processor time of messages.

    Raises:
        InputError: names repeat, a block lacks a time, or an edge does not lead to a later block.
    """

    blocks: tuple[ModelBlock, ...]
    edges: tuple[BlockEdge, ...]
    devices: tuple[PlanDevice, ...]
    links: Mapping[tuple[int, int], NetworkHop]
    batch: int
    optimizer_copies: int = 0
    handling: MessageHandling = field(default=DEFAULT_HANDLING)

    def __post_init__(self) -> None:
        for kind, names in (
            ("blocks", [each.name for each in self.blocks]),
            ("devices", [each.name for each in self.devices]),
        ):
            repeated = next((name for name in names if names.count(name) > 1), None)
            if repeated is not None or not names:
                raise InputError(
                    f"{kind}: {repeated or 'none'} — give one or more, each with a name of its own"
                )
        if self.batch < 1:
            raise InputError(f"batch is {self.batch} and must be at least 1")
        for device in self.devices:
            for times in (device.forward, device.backward):
                if len(times) != len(self.blocks):
                    raise InputError(
                        f"{device.name}: has times of {len(times)} of {len(self.blocks)} blocks —"
                        " measure every block on every kind of device"
                    )
        for edge in self.edges:
            if not 0 <= edge.src < edge.dst < len(self.blocks):
                raise InputError(
                    f"edge from block {edge.src} to {edge.dst}: must lead to a later block of"
                    f" {len(self.blocks)}"
                )

    def transfer_s(self, src: int, dst: int, sent_bytes: float) -> float:
        """Return the seconds of a message on a link, without its delay; infinite without a link.

        They are those on the wire, or those in which the slower device handles the message.
        """
        hop = self.links.get((src, dst))
        if hop is None:
            return math.inf
        least_share = min(self.devices[each].share for each in (src, dst))
        wire_s = sent_bytes * FRAMING_OVERHEAD * 8e-6 / hop.rate_mbps
        return max(wire_s, self.handling.ring_part_s / least_share)

    def delay_s(self, src: int, dst: int) -> float:
        """Return the seconds that the last byte of a message travels."""
        hop = self.links.get((src, dst))
        return math.inf if hop is None else hop.rtt_ms / 2e3

    def all_reduce_s(
        self, block: int, devices: Sequence[int]
    ) -> tuple[float, tuple[tuple[int, int], ...]]:
        """Return the seconds of a ring all-reduce of a block, and the links of the ring.

        Every part takes the longest of three times: all of it on the wire of the slowest link, half
        of it and a round trip, or the slowest device's handling of it (see
        `core/cost_model/ring_all_reduce.py`).
        """
        ring = tuple(zip(devices, [*devices[1:], devices[0]], strict=True))
        part_bytes = self.blocks[block].parameter_bytes / len(devices)
        times_s = [0.0]
        for ends in ring:
            wire_s = self.transfer_s(*ends, part_bytes)
            times_s += [wire_s, wire_s / 2 + 2 * self.delay_s(*ends)]
        part_s = max(times_s)
        return 2 * (len(devices) - 1) * part_s, ring

    def update_s(self, device: int, block: int) -> float:
        """Return the seconds in which a device updates the parameters of a block."""
        return self.blocks[block].update_s / self.devices[device].share

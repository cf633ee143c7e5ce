"""Candidates of a recommendation: a type of machine, a number of them and a strategy.

The hosts of one service of the scenario are replaced by machines of the type. A machine computes as
many times as fast as one core of this machine as it has cores, unless its speed is given. The
training is simulated with the scenario's links, by the rule of the strategy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.errors import InputError
from laggard.predict.forecast import STEADY_STEPS, count_steps, price_hosts, require_predictable
from laggard.predict.host_steps import MachineSteps, count_samples
from laggard.predict.planned_training import divide_shares, plan_training
from laggard.predict.recommendation.beliefs import CandidateTraits
from laggard.predict.recommendation.memory_need import MemoryNeed
from laggard.predict.recommendation.price_list import Instance, PriceList
from laggard.scenario.load import Scenario

MAX_CANDIDATES = 4000
"""Largest number of candidates that are compared."""

_SPEEDS = 12
"""Speeds that are simulated for a number of machines and a strategy."""

_REACH = 6.0
"""How much faster or slower than they are believed to be machines are simulated."""


@dataclass(frozen=True)
class SpeedCurve:
    """Simulated time of a training by the speed of its machines.

    Attributes:
        speeds: speeds in cores of this machine, ascending, [K].
        seconds: seconds at these speeds, [K].
    """

    speeds: tuple[float, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class MachineCandidate:
    """A way to train.

    Attributes:
        instance: type of machine.
        machines: number of machines.
        strategy: strategy.
        speed: speed of a machine, in cores of this machine.
        curve: time of the training by the speed of the machines.
        price_per_hour: price of all hosts for an hour.
    """

    instance: Instance
    machines: int
    strategy: str
    speed: float
    curve: SpeedCurve
    price_per_hour: float

    @property
    def name(self) -> str:
        """Return the name in commands, such as `c5.large:8:allreduce`."""
        return f"{self.instance.name}:{self.machines}:{self.strategy}"


@dataclass(frozen=True)
class Setting:
    """A scenario with a number of machines and a strategy.

    Attributes:
        scenario: the scenario.
        hosts: names of the hosts that machines of a type replace.
        machines: their number.
    """

    scenario: Scenario
    hosts: frozenset[str]
    machines: int


def forecast_candidates(
    settings: Sequence[Setting],
    prices: PriceList,
    steps: MachineSteps,
    speeds: Mapping[str, float],
    memory: MemoryNeed,
) -> Iterator[MachineCandidate]:
    """Yield a candidate for every setting and type of machine that can do it.

    A type is left out of a setting that needs more of its machines, or of their memory, than there
    are.

    Args:
        settings: the scenario with numbers of machines and strategies.
        prices: machines that can be had.
        steps: steps on this machine's cores.
        speeds: speed of types whose speed is known, in cores of this machine.
        memory: memory of a worker.
    """
    own = {each.name: speeds.get(each.name, each.cores) for each in prices.instances}
    simulated = np.geomspace(
        min(own.values()) / _REACH, max(own.values()) * _REACH, _SPEEDS
    ).tolist()
    for setting in settings:
        scenario = setting.scenario
        workers = [rank for rank in scenario.ranks if rank.name in setting.hosts]
        per_machine = len(workers) / max(setting.machines, 1)
        needed_gib = per_machine * memory.gib(count_samples(scenario))
        others = price_others(setting, prices)
        able = [
            each
            for each in prices.instances
            if each.memory_gib >= needed_gib
            and (each.most is None or each.most >= setting.machines)
        ]
        if not able:
            continue
        curve = SpeedCurve(
            tuple(simulated),
            tuple(forecast_time_s(setting, steps, speed) for speed in simulated),
        )
        for each in able:
            yield MachineCandidate(
                instance=each,
                machines=setting.machines,
                strategy=scenario.workload.strategy.name,
                speed=own[each.name],
                curve=curve,
                price_per_hour=others + setting.machines * each.price,
            )


def price_others(setting: Setting, prices: PriceList) -> float:
    """Return the price of an hour of all hosts that are not replaced."""
    scenario = setting.scenario
    if prices.other_price is not None:
        return prices.other_price * sum(host.name not in setting.hosts for host in scenario.hosts)
    return price_hosts(scenario, setting.hosts)


def forecast_time_s(setting: Setting, steps: MachineSteps, speed: float) -> float:
    """Return the seconds of a training on machines of a speed.

    Args:
        setting: the scenario, with the hosts that are replaced.
        steps: steps on this machine's cores.
        speed: speed of a replaced host, in cores of this machine.
    """
    scenario, wanted = setting.scenario, setting.scenario.workload.stop.steps
    assert wanted is not None
    strategy = require_predictable(scenario)
    equipped = replace(scenario, shares={**scenario.shares, **dict.fromkeys(setting.hosts, speed)})
    shares = divide_shares(equipped)
    step_s = [each.usual_s for each in steps.forecast(equipped).seconds]

    def simulate(count: int) -> float:
        # Timed changes are relative to the shares that the scenario gives.
        training = plan_training(scenario, step_s, steps.messages, steps.handling, count)
        # One core of a machine handles a message.
        own = tuple(min(shares[host], 1.0) for host in training.hosts)
        server_share = training.server_share
        if training.server in setting.hosts:
            server_share = min(equipped.shares[training.server], 1.0)
        played = strategy.simulate(replace(training, shares_of_core=own, server_share=server_share))
        return played.makespan_s / training.work.steps

    per_step_s = simulate(min(STEADY_STEPS, wanted))
    if scenario.changes:
        per_step_s = simulate(count_steps(scenario.workload.stop, per_step_s))
    return per_step_s * wanted


def describe_traits(candidates: Sequence[MachineCandidate]) -> CandidateTraits:
    """Return the simulated times of candidates, all at the same speeds, and what they share."""

    def number(names: Iterable[str]) -> Mapping[str, int]:
        return {name: place for place, name in enumerate(dict.fromkeys(names))}

    families = number(each.instance.family for each in candidates)
    instances = number(each.instance.name for each in candidates)

    def collect(values: Iterator[float]) -> FloatArray:
        return np.fromiter(values, np.float64)

    return CandidateTraits(
        speeds=np.log(candidates[0].curve.speeds),
        seconds=np.log([each.curve.seconds for each in candidates]),
        own_speeds=np.log([each.speed for each in candidates]),
        families=[families[each.instance.family] for each in candidates],
        instances=[instances[each.instance.name] for each in candidates],
        cores=collect(each.instance.cores for each in candidates),
        machines=collect(float(each.machines) for each in candidates),
    )


def require_few(settings: int, instances: int) -> None:
    """Refuse more candidates than can be compared.

    Raises:
        InputError: there are too many.
    """
    if settings * instances > MAX_CANDIDATES:
        raise InputError(
            f"{settings} numbers of machines and strategies with {instances} types are"
            f" {settings * instances} candidates, and at most {MAX_CANDIDATES} are compared — give"
            " fewer, for example with --workers 2,4,8 or with fewer rows of prices"
        )

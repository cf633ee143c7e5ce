"""Tasks that depend on each other and share resources, such as those of a step of a plan.

A resource is a processor or a link, which one task has at a time. A task begins as soon as all
tasks before it are done and its resources are free; of several that could begin, the one with the
highest priority does (list scheduling; R. L. Graham, "Bounds on multiprocessing timing anomalies",
SIAM J. Appl. Math. 17, 1969).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from laggard.core.errors import InputError


@dataclass(frozen=True)
class ResourceTask:
    """A task.

    Attributes:
        seconds: seconds for which it occupies its resources.
        resources: numbers of the resources.
        after: numbers of the tasks that must be done before; they come earlier in the list.
        delay_s: seconds from its end until tasks after it may begin, as for the last byte of a
            message.
    """

    seconds: float
    resources: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    delay_s: float = 0.0


@dataclass(frozen=True)
class TaskSchedule:
    """Times of tasks.

    Attributes:
        begins_s: time at which each task begins.
        ends_s: time at which each has its effect, with its delay.
    """

    begins_s: tuple[float, ...]
    ends_s: tuple[float, ...]

    @property
    def makespan_s(self) -> float:
        """Return the time at which all tasks are done."""
        return max(self.ends_s, default=0.0)


def compute_upward_ranks(tasks: Sequence[ResourceTask]) -> list[float]:
    """Return the seconds from the begin of each task to the end of all, along the longest chain.

    H. Topcuoglu, S. Hariri, M. Wu, "Performance-effective and low-complexity task scheduling for
    heterogeneous computing", IEEE Trans. Parallel Distrib. Syst. 13, 2002.

    Examples:
        >>> compute_upward_ranks([ResourceTask(1.0), ResourceTask(2.0, after=(0,), delay_s=0.5)])
        [3.5, 2.5]
    """
    ranks = [task.seconds + task.delay_s for task in tasks]
    for number in range(len(tasks) - 1, -1, -1):
        for before in tasks[number].after:
            own_s = tasks[before].seconds + tasks[before].delay_s
            ranks[before] = max(ranks[before], own_s + ranks[number])
    return ranks


def schedule_tasks(tasks: Sequence[ResourceTask], priorities: Sequence[float]) -> TaskSchedule:
    """Return the times of all tasks.

    Args:
        tasks: tasks, each after those that it waits for.
        priorities: priority of each task; the higher one begins first, then the earlier one.

    Raises:
        InputError: a task waits for itself or for a later one, or takes an impossible time.

    Examples:
        >>> tasks = [ResourceTask(2.0, (0,)), ResourceTask(1.0, (0,))]
        >>> tasks.append(ResourceTask(1.0, (1,), after=(1,)))
        >>> schedule_tasks(tasks, priorities=[0.0, 1.0, 0.0]).begins_s
        (1.0, 0.0, 1.0)
    """
    _check(tasks)
    return _ListScheduler(tasks, priorities).run()


def schedule_in_order(tasks: Sequence[ResourceTask], order: Sequence[int]) -> TaskSchedule:
    """Return the times of all tasks, each of which has its resources before those after it.

    Args:
        tasks: tasks, each after those that it waits for.
        order: numbers of all tasks, each after those that it waits for.

    Raises:
        InputError: a task waits for a later one, or takes an impossible time.

    Examples:
        >>> tasks = [ResourceTask(2.0, (0,)), ResourceTask(1.0, (0,))]
        >>> tasks.append(ResourceTask(1.0, (1,), after=(1,)))
        >>> schedule_in_order(tasks, order=[0, 1, 2]).begins_s
        (0.0, 2.0, 3.0)
    """
    _check(tasks)
    begins, ends = [0.0] * len(tasks), [0.0] * len(tasks)
    free_s: dict[int, float] = {}
    for number in order:
        task = tasks[number]
        begin_s = max([ends[before] for before in task.after], default=0.0)
        begin_s = max([begin_s, *(free_s.get(each, 0.0) for each in task.resources)])
        free_s |= dict.fromkeys(task.resources, begin_s + task.seconds)
        begins[number], ends[number] = begin_s, begin_s + task.seconds + task.delay_s
    return TaskSchedule(tuple(begins), tuple(ends))


class _ListScheduler:
    """Scheduler that begins the ready task of the highest priority whose resources are free."""

    def __init__(self, tasks: Sequence[ResourceTask], priorities: Sequence[float]) -> None:
        self._tasks, self._priorities = tasks, priorities
        self._waits = [len(task.after) for task in tasks]
        self._followers: list[list[int]] = [[] for _ in tasks]
        for number, task in enumerate(tasks):
            for before in task.after:
                self._followers[before].append(number)
        self._begins, self._ends = [0.0] * len(tasks), [0.0] * len(tasks)
        self._busy: set[int] = set()
        self._ready = [
            (-priorities[number], number) for number, count in enumerate(self._waits) if not count
        ]
        heapq.heapify(self._ready)
        # Time, number of the task, and whether it is over (else its resources are free again).
        self._due: list[tuple[float, int, bool]] = []

    def run(self) -> TaskSchedule:
        now_s = 0.0
        while self._ready or self._due:
            self._begin_ready(now_s)
            now_s = self._due[0][0]
            while self._due and self._due[0][0] <= now_s:
                _, number, is_over = heapq.heappop(self._due)
                if is_over:
                    self._end(number, now_s)
                else:
                    self._busy.difference_update(self._tasks[number].resources)
        return TaskSchedule(tuple(self._begins), tuple(self._ends))

    def _begin_ready(self, now_s: float) -> None:
        """Begin all tasks that can begin now."""
        blocked = []
        while self._ready:
            entry = heapq.heappop(self._ready)
            number, task = entry[1], self._tasks[entry[1]]
            if not self._busy.isdisjoint(task.resources):
                blocked.append(entry)
                continue
            self._busy.update(task.resources)
            self._begins[number] = now_s
            heapq.heappush(self._due, (now_s + task.seconds, number, False))
            heapq.heappush(self._due, (now_s + task.seconds + task.delay_s, number, True))
        self._ready = blocked

    def _end(self, number: int, now_s: float) -> None:
        self._ends[number] = now_s
        for later in self._followers[number]:
            self._waits[later] -= 1
            if not self._waits[later]:
                heapq.heappush(self._ready, (-self._priorities[later], later))


def _check(tasks: Sequence[ResourceTask]) -> None:
    for number, task in enumerate(tasks):
        if any(not 0 <= before < number for before in task.after):
            raise InputError(
                f"task {number} waits for {task.after} — let each task wait for earlier ones only"
            )
        if not (0 <= task.seconds < math.inf and 0 <= task.delay_s < math.inf):
            raise InputError(
                f"task {number} takes {task.seconds} s and {task.delay_s} s of delay — give finite"
                " times of at least 0"
            )

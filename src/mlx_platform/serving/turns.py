"""Whose turn it is: the most urgent first, and nobody is kept waiting without evidence that it pays."""

import math
from collections.abc import Collection

from mlx_platform.serving.batch import Batch
from mlx_platform.serving.batch_policy import BatchPolicy
from mlx_platform.serving.company import Company
from mlx_platform.serving.costs import Costs
from mlx_platform.serving.grouping import Grouping
from mlx_platform.serving.job import Group, Job
from mlx_platform.serving.waiting import Waiting


class Turns:
    """Chooses what runs next.

    Args:
        waiting: the groups.
        grouping: how many of a group fit into a run.
        policy: the longest wait, and how many runs go on at a time.
        costs: what runs take.

    Attributes:
        hurried: nobody waits for company any more.
    """

    def __init__(self, waiting: Waiting, grouping: Grouping, policy: BatchPolicy, costs: Costs) -> None:
        self.hurried = False
        self._waiting = waiting
        self._grouping = grouping
        self._policy = policy
        self._costs = costs
        self._company = Company(policy.max_delay)
        self._waits = policy.max_delay > 0

    def came(self, job: Job, in_flight: int) -> None:
        """A job has joined the queue; so many are in flight now."""
        if self._waits:
            self._company.came(job.admitted, in_flight)

    def left(self, in_flight: int) -> None:
        """A batch leaves the queue; so many are in flight now."""
        if self._waits:
            self._company.left(in_flight)

    def may_start(self, running: Collection[Batch]) -> bool:
        """Whether another run may begin; one that needs all memory waits for the others, and they for it."""
        if not running:
            return True
        if len(running) >= self._policy.workers or self._waiting.starved.rows:
            return False
        return not any(batch.jobs[0].group.exclusive for batch in running)

    def may_join(self, group: Group, now: float, running: Collection[Batch]) -> bool:
        """Whether a run of a group may begin beside those that go on: short ones wait for each other."""
        worth = self._policy.beside_seconds
        if not running or not worth:
            return True
        rows = min(group.rows, self._grouping.limit(group, now))
        if self._costs.seconds(group, rows) >= worth:
            return True
        return all(max(batch.expected, now - batch.started) >= worth for batch in running)

    def choose(self, now: float, in_flight: int) -> tuple[Group | None, float]:
        """The group to run now: the head of the highest priority, then of the earliest deadline.

        None when all may wait, and when to look again.
        """
        if self._waiting.starved.rows:
            return self._waiting.starved, now
        if not self._waits and (only := self._waiting.only()) is not None:
            return only, now
        best, best_rank, again = None, (math.inf, math.inf), math.inf
        for group in self._waiting.busy():
            head = group.head()
            if head is None:
                continue
            until = self._wait_until(group, head, now, in_flight) if self._waits else now
            if until > now:
                again = min(again, until)
            elif (rank := (head.priority, head.deadline)) < best_rank:
                best, best_rank = group, rank
        return best, again

    def room(self, group: Group, now: float, running: int) -> int:
        """The rows of the next run: all there is room for, or the share of one of several idle workers."""
        limit = self._grouping.limit(group, now)
        if self._policy.workers == 1:
            return limit
        idle = self._policy.workers - running - self._waiting.count() + 1
        share = -(-group.rows // max(1, idle))
        if share < min(group.rows, limit):
            long = self._costs.seconds(group, share) >= self._policy.beside_seconds
            if long and self._costs.gains_by_spreading(min(group.rows, limit), share):
                return share
        return limit

    def _wait_until(self, group: Group, head: Job, now: float, in_flight: int) -> float:
        """Until when a group had better wait for others to join it."""
        if self.hurried or not group.joins or group.rows >= self._grouping.limit(group, now):
            return now
        if not self._costs.gains_by_company(group.rows):
            return now
        slack = head.deadline - 2 * self._costs.seconds(group, group.rows)
        return min(self._company.wait_until(group.oldest(), in_flight), slack)

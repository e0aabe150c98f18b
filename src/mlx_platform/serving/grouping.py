"""Which requests may share a run, and how many of them."""

import logging
import math
import time

from mlx_platform.core.tensors import Tensors
from mlx_platform.serving.batch import Batch
from mlx_platform.serving.batch_policy import BatchPolicy
from mlx_platform.serving.costs import Costs
from mlx_platform.serving.job import Group
from mlx_platform.serving.padding import Padding, bucket
from mlx_platform.serving.waiting import Waiting

_RECOVERY_SECONDS = 60.0  # after which a batch that memory was not enough for may grow again
_LONG_SECONDS = 0.1  # a run of which is not begun with before shorter ones have shown that it pays
_FIRST_ROWS = 4
_logger = logging.getLogger(__name__)


class Grouping:
    """Finds the group of a request, and knows how many of its rows fit into a run.

    Args:
        waiting: the groups.
        policy: the most rows of a run.
        costs: what to expect of a group that is new.
        padding: how sequences of different lengths may share a run; None when they may not.

    Attributes:
        joins: whether any requests may share a run.
    """

    def __init__(self, waiting: Waiting, policy: BatchPolicy, costs: Costs, padding: Padding | None) -> None:
        self.joins = True
        self._waiting = waiting
        self._policy = policy
        self._costs = costs
        self._padding = padding

    def find(self, feeds: Tensors, rows: int, outputs: tuple[str, ...]) -> tuple[Group, int]:
        """The group of requests that can stand in one run with this one, and the length of its sequences."""
        padding, length, bound = self._padding, 0, 0
        if padding is not None and (length := padding.length(feeds)):
            bound = bucket(length)
            sizes = [
                (name, array.dtype.char, array.shape[2:] if name in padding.fill else array.shape[1:])
                for name, array in feeds.items()
            ]
        else:
            sizes = [(name, array.dtype.char, array.shape[1:]) for name, array in feeds.items()]
        key = (outputs, bound, *sizes)
        group = self._waiting.find(key)
        if group is None:
            group = self._new_group(feeds, rows, bound / length if length else 1.0)
            self._waiting.remember(key, group)
        return group, length

    def _new_group(self, feeds: Tensors, rows: int, margin: float) -> Group:
        """A group of requests such as this one, of which others may be so many times as long."""
        cells = sum(array.size for array in feeds.values()) / rows
        nbytes = sum(array.nbytes for array in feeds.values()) / rows
        group = Group(joins=True, cells=math.ceil(cells * margin), row_bytes=math.ceil(nbytes))
        if group.cells:
            group.most_rows = int(min(self._policy.max_rows, max(1, self._policy.max_cells / group.cells)))
        else:
            group.most_rows = self._policy.max_rows
        self._costs.expect(group)
        if self._costs.seconds(group, group.most_rows) > _LONG_SECONDS:
            group.sizes.begin(_FIRST_ROWS)
        return group

    def limit(self, group: Group, now: float) -> int:
        """The most rows of a run of a group."""
        if not self.joins:
            return 1
        if group.limit and now > group.limit_until:
            group.limit = 2 * group.limit if 2 * group.limit < group.most_rows else 0
            group.limit_until = now + _RECOVERY_SECONDS
        most = group.limit or group.most_rows
        return most if group.sizes.most is None else min(most, group.sizes.most)

    def shrink(self, batch: Batch) -> None:
        """Run smaller batches of a group that memory was not enough for."""
        group = batch.jobs[0].group
        group.limit = max(1, min(group.limit or group.most_rows, batch.rows // 2))
        group.limit_until = time.monotonic() + _RECOVERY_SECONDS
        _logger.warning("Memory ran out in a run of %d rows: %d are tried next.", batch.rows, group.limit)

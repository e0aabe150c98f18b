"""From what a model was seen to take, and from what was set, to how it is batched."""

import math
import os

from mlx_platform.core.settings import ServingSettings
from mlx_platform.inference.session import Session
from mlx_platform.serving.batch_policy import BatchPolicy
from mlx_platform.serving.warmup import WarmUp

_SIDE_BY_SIDE_SECONDS = 0.002  # a shorter run is over before a second worker would be worth its price
LATENCY_SHARE = 0.1  # of the time that a request has, for one run


def most_workers(settings: ServingSettings, session: Session) -> int:
    """How many runs may go on at a time: as many as this process has cores for, and one on a GPU."""
    if settings.workers:
        return settings.workers
    if session.device != "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) // max(1, settings.processes)
    return max(1, cores // session.threads)


def policy(settings: ServingSettings, session: Session, warm: WarmUp) -> BatchPolicy:
    """How to batch a model that is warm."""
    workers = most_workers(settings, session)
    lone = warm.seconds[min(warm.seconds)] if warm.seconds else 0.0
    if not settings.workers and lone < _SIDE_BY_SIDE_SECONDS:
        workers = 1
    return BatchPolicy(
        max_rows=warm.size.rows,
        max_cells=math.inf if warm.size.bound == "setting" else warm.size.rows * max(1, warm.cells),
        max_delay=settings.max_queue_delay_ms / 1000,
        max_queue_rows=settings.max_queue_rows,
        max_queue_bytes=settings.max_queue_bytes,
        workers=workers,
        # A driver that hangs must not take the event loop along, so only the CPU works there.
        inline_cells=warm.inline_cells if session.device == "cpu" else 0,
    )

"""From what a model was seen to take, and from what was set, to how it is batched."""

import math
import os

from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.inference.session import Session
from mlx_platform.serving.batch_policy import BatchPolicy
from mlx_platform.serving.warmup import WarmUp

_BESIDE_SECONDS = 0.002
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
    return BatchPolicy(
        max_rows=warm.size.rows,
        max_cells=math.inf if warm.size.bound == "setting" else warm.size.rows * max(1, warm.cells),
        max_delay=settings.max_queue_delay_ms / 1000,
        max_queue_rows=settings.max_queue_rows,
        max_queue_bytes=settings.max_queue_bytes,
        workers=most_workers(settings, session),
        # Whoever sets a number of workers wants them all.
        beside_seconds=0.0 if settings.workers else _BESIDE_SECONDS,
        # A driver that hangs must not take the event loop along, so only the CPU works there.
        inline_cells=warm.inline_cells if session.device == "cpu" else 0,
    )

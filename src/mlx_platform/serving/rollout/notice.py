"""Telling the sinks of what a rollout did by itself, on a thread that nobody waits for."""

import logging
import threading

from mlx_platform.core.clock import system_clock
from mlx_platform.core.settings import Settings
from mlx_platform.registry.telling import tell_pending

_logger = logging.getLogger(__name__)


def tell_beside(settings: Settings, name: str) -> None:
    """Tell every sink what it has not been told of a model yet; returns at once.

    A sink that cannot be told is logged. It is told at the next transition or move, or by `mlx events`.
    """
    if settings.events.sinks:
        threading.Thread(target=_tell, args=(settings, name), name="mlx-rollout-notice", daemon=True).start()


def _tell(settings: Settings, name: str) -> None:
    for warning in tell_pending(settings, system_clock, name):
        _logger.warning("%s", warning)

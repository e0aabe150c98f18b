"""What a process has to say of a rollout, and what it is told."""

from collections.abc import Mapping
from typing import Any

from mlx_platform.core.values import frozen
from mlx_platform.serving.rollout.counts import Window
from mlx_platform.serving.rollout.state import Rollout

DEADLY = 2
"""Deaths, one after the other, from which the candidate is to blame, and is not loaded any more."""


@frozen
class Own:
    """What this process has to say of a rollout; see `Published`, and `Arms.differences`."""

    rollout: str
    counted: Window
    loaded: bool
    problem: str = ""
    differences: tuple[Mapping[str, Any], ...] = ()


@frozen
class Standing:
    """How things stand: the rollout that goes on, if any does, and how often processes here died with it.

    `production` is who holds the alias, as far as anybody has looked yet, and `seen` the number of the newest
    row of the journal that was read. `deaths` is None before anybody has looked for them.
    """

    rollout: Rollout | None = None
    production: int | None = None
    deaths: int | None = None
    leads: bool = False
    seen: int = 0

"""What outside sources say at a look, asked beside everything else: a slow one must not hold up a lease."""

import threading
from collections.abc import Hashable, Iterable, Mapping

from mlx_platform.core.errors import MlxError
from mlx_platform.serving.rollout.looks import Reading
from mlx_platform.serving.rollout.plan import MetricRule
from mlx_platform.serving.rollout.prometheus import ask_prometheus
from mlx_platform.serving.rollout.state import Rollout

_SECONDS = 5.0


class Readings:
    """The readings of one look at a time."""

    def __init__(self) -> None:
        self._look: Hashable = None
        self._wanted = 0
        self._found: dict[str, Reading] = {}

    def collect(
        self, look: Hashable, rules: Iterable[MetricRule], rollout: Rollout
    ) -> Mapping[str, Reading] | None:
        """The answers for a look, whose first call asks; None while one of them is still on its way."""
        if look != self._look:
            asked = [rule for rule in rules if rule.kind == "prometheus"]
            self._look, self._wanted, self._found = look, len(asked), {}
            for rule in asked:
                arguments = (rule.address, query_of(rule, rollout), self._found, rule.name)
                threading.Thread(target=_ask, args=arguments, name="mlx-reading", daemon=True).start()
        return dict(self._found) if len(self._found) == self._wanted else None


def query_of(rule: MetricRule, rollout: Rollout) -> str:
    """The query with `$model`, `$stable` and `$candidate` for what they are in this rollout."""
    text = rule.query.replace("$model", rollout.model)
    return text.replace("$stable", str(rollout.stable)).replace("$candidate", str(rollout.candidate))


def _ask(address: str, query: str, found: dict[str, Reading], name: str) -> None:
    try:
        found[name] = Reading(ask_prometheus(address, query, timeout=_SECONDS))
    except MlxError as error:
        found[name] = Reading(error=error.message.rstrip("."))
    except Exception as error:  # noqa: BLE001 - the rim of a thread: no answer is one, too
        found[name] = Reading(error=f"{type(error).__name__}: {error}")

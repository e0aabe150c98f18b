"""Telling people once when traffic begins to drift, and once when it is over.

What was told last stands in a tag of the version, so that machines that come and go, such as those of a
scheduled pipeline, know it. A window that tells nothing changes nothing.
"""

import os
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from mlx_platform.core.clock import rfc3339
from mlx_platform.core.errors import UnavailableError, UsageError
from mlx_platform.core.files import file_lock
from mlx_platform.core.report import Result
from mlx_platform.core.settings import SinkSettings
from mlx_platform.core.text import listed
from mlx_platform.core.values import frozen
from mlx_platform.core.verdict import Verdict
from mlx_platform.drift.verdict import FeatureDrift, Level
from mlx_platform.registry.courier import make_sender
from mlx_platform.registry.outbox import Message, Sender, check_sinks, make_message, wants_model
from mlx_platform.registry.ref import VersionRef
from mlx_platform.registry.version import Version
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.drifting.outcome import Outcome

KIND = "drift"
TAG = "mlx.drift"
_LOCK_SECONDS = 120.0
_NAMED = 20  # features in a message

State = Literal["drift", "ok"]
_STATES: dict[Verdict, State] = {Verdict.FAIL: "drift", Verdict.PASS: "ok"}


@frozen
class Told:
    """What came of it: the state now, whether it had changed, and who was told or could not be."""

    state: State | None
    changed: bool
    sinks: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "changed": self.changed,
            "told": list(self.sinks),
            "failed": list(self.failed),
        }


def listeners(context: Context, model: str) -> tuple[SinkSettings, ...]:
    """The sinks that are to be told of a model's drift.

    Raises:
        UsageError: there is none, or the settings of one cannot be used.
    """
    sinks = context.settings.events.sinks
    check_sinks(sinks)
    found = tuple(sink for sink in sinks if KIND in sink.kinds and wants_model(sink, model))
    if not found:
        raise UsageError(
            f"--notify has nobody to tell of {model}.",
            hint='Add [[events.sinks]] with kinds = ["drift"] to mlx.toml.',
        )
    return found


def notify(
    context: Context, version: Version, verdict: Verdict, found: Sequence[FeatureDrift], facts: dict[str, Any]
) -> Told:
    """Tell every sink where the state of a version has changed; the first word is only of drift.

    The state is kept once all have been told, so that whoever could not be is told the next time, under the
    same id.

    Args:
        context: the command's context.
        version: whose traffic it is.
        verdict: of the window; one that is neither a pass nor a failure leaves the state as it was.
        found: its features.
        facts: what else a message says.

    Raises:
        UsageError: nobody is to be told, or the settings or the secret of a sink cannot be used.
        UnavailableError: the registry cannot be read or written.
    """
    sinks = listeners(context, version.name)
    senders = [(sink, make_sender(sink, os.environ, context.settings.folder)) for sink in sinks]
    state = _STATES.get(verdict)
    with file_lock(_lock(context, version), timeout=_LOCK_SECONDS, purpose="telling of drift"):
        known, since = _state(context.catalog.resolve(VersionRef(version.name, version.number)))
        if state is None or state == known:
            return Told(known, changed=False)
        if known is None and state == "ok":
            _keep(context, version, state)
            return Told(state, changed=False)
        content = {
            "model": version.name,
            "version": version.number,
            "label": version.label,
            "digest": version.digest,
            "state": state,
            "before": known,
            "features": [_feature(each) for each in _worst(found)],
            **facts,
        }
        # The same as long as it is the same change, which may have to be told again.
        key = uuid.uuid5(uuid.NAMESPACE_OID, f"{version.ref} {version.digest} {state} {since}").hex
        told = _tell(context, senders, make_message(key, KIND, context.clock(), content))
        if not told.failed:
            _keep(context, version, state)
        return replace(told, state=state)


def _tell(context: Context, senders: Sequence[tuple[SinkSettings, Sender]], message: Message) -> Told:
    answers = {
        sink.name: sender.send(message, timeout=sink.timeout, now=context.clock()) for sink, sender in senders
    }
    return Told(
        None,
        changed=True,
        sinks=tuple(name for name, answer in answers.items() if answer.delivered),
        failed=tuple(f"{name}: {answer.said}" for name, answer in answers.items() if not answer.delivered),
    )


def _lock(context: Context, version: Version) -> Path:
    folder = context.settings.path(context.settings.cache.dir) / "drift"
    return folder / f"{version.name}-{version.number}.lock"


def _state(version: Version) -> tuple[State | None, str]:
    """What was told last, and when."""
    said, _, since = version.tags.get(TAG, "").partition(" ")
    state = next((known for known in _STATES.values() if known == said), None)
    return state, since if state else ""


def _keep(context: Context, version: Version, state: State) -> None:
    context.catalog.set_tags(version, {TAG: f"{state} {rfc3339(context.clock())}"})


def _worst(found: Iterable[FeatureDrift]) -> list[FeatureDrift]:
    alarms = [each for each in found if each.level in {Level.DRIFT, Level.WARN}]
    return sorted(alarms, key=lambda each: -each.psi)[:_NAMED]


def _feature(feature: FeatureDrift) -> dict[str, Any]:
    return {
        "name": feature.name,
        "verdict": str(feature.level),
        "psi": feature.psi,
        "psi_adjusted": feature.decision.adjusted if feature.decision else None,
    }


def with_notice(context: Context, result: Result, version: Version, outcome: Outcome) -> Result:
    """The result of a comparison, after everybody was told that is to be."""
    facts = {
        "summary": result.report.summary,
        "baseline": outcome.baseline.profile.baseline_id,
        "window": outcome.window.span.document(),
        "rows": outcome.window.rows,
    }
    told = notify(context, version, outcome.verdict, outcome.features, facts)
    said = replace(result, data={**result.data, "notice": told.document()})
    if not told.failed:
        return said
    warning = f"Not told of it, and to be told the next time: {listed(told.failed, 5, width=200)}."
    code = UnavailableError.exit_code if result.exit_code == 0 else result.code
    return replace(said, warnings=(*said.warnings, warning), code=code)

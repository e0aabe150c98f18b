"""What servers that take part in a rollout tell each other, in tags of the model.

Every process has a tag of its own with all that it has counted in the present window; what a process counted
stays there when it has gone, so that nothing is counted twice and nothing is lost. Whoever leads adds them
up, and leaves what it saw at its last look. All of it is text that anybody with access to the registry can
write.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from mlx_platform.core.values import frozen
from mlx_platform.registry.rollout import TAG_PREFIX
from mlx_platform.serving.rollout.counts import Window
from mlx_platform.serving.rollout.lease import LEASE
from mlx_platform.serving.rollout.state import Rollout
from mlx_platform.serving.rollout.verdict import StepVerdict, verdict_from_document

ARMS = f"{TAG_PREFIX}arms."
LOOK = f"{TAG_PREFIX}look"
_TAG_CAP = 5000  # characters; some databases take no longer tag


@frozen
class Published:
    """What one process says.

    Attributes:
        server: names the process: its host, and a number for its boot.
        rollout: whose.
        counted: in the present window.
        at: when it was said.
        deaths: how many processes have died, one after the other, on this machine with the candidate loaded.
        loaded: whether the candidate is.
        problem: why it is not, as a sentence.
        clean: whether the process has said goodbye.
    """

    server: str
    rollout: str
    counted: Window
    at: str
    deaths: int = 0
    loaded: bool = False
    problem: str = ""
    clean: bool = False

    @property
    def tag(self) -> str:
        """The key of its tag."""
        return ARMS + self.server

    def encode(self) -> str:
        """The tag's value; what does not fit is left out, the finest first."""
        arms = self.counted.document()
        for kept in (arms, _without(arms, "o"), _without(arms, "o", "f"), _without(arms, "o", "f", "l")):
            text = self._text(kept)
            if len(text) <= _TAG_CAP:
                break
        return text

    def _text(self, arms: Mapping[str, Any]) -> str:
        document = {
            "rollout": self.rollout,
            "window": self.counted.number,
            "at": self.at,
            "deaths": self.deaths,
            "loaded": self.loaded,
            "problem": self.problem[:300],
            "clean": self.clean,
            "arms": arms,
        }
        return orjson.dumps(document).decode()

    @classmethod
    def decode(cls, tag: str, text: str) -> "Published | None":
        """Read back what `encode` wrote; None for anything else."""
        try:
            document = orjson.loads(text)
            deaths = int(document["deaths"])
            return cls(
                server=tag.removeprefix(ARMS),
                rollout=str(document["rollout"]),
                counted=Window.from_document(int(document["window"]), document["arms"]),
                at=str(document["at"]),
                deaths=max(0, deaths),
                loaded=document["loaded"] is True,
                problem=str(document["problem"]),
                clean=document["clean"] is True,
            )
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, OverflowError):
            return None


def published(tags: Mapping[str, str], rollout: str) -> tuple[Published, ...]:
    """What the processes say that take part in a rollout, or did, by name."""
    found = (Published.decode(tag, text) for tag, text in sorted(tags.items()) if tag.startswith(ARMS))
    return tuple(said for said in found if said is not None and said.rollout == rollout)


def added_up(every: Iterable[Published], window: int) -> Window:
    """What all of them have counted in a window."""
    total = Window(window)
    for said in every:
        if said.counted.number == window:
            total.add(said.counted)
    return total


def look_tag(rollout: Rollout, verdict: StepVerdict, at: str) -> str:
    """The last look, for whoever watches, and for the next one who leads."""
    document = verdict.document()
    numbers = document["metrics"]
    text = orjson.dumps({"rollout": rollout.id, "at": at, **document}).decode()
    if len(text) > _TAG_CAP:
        document["metrics"] = [{k: v for k, v in metric.items() if k != "numbers"} for metric in numbers]
        text = orjson.dumps({"rollout": rollout.id, "at": at, **document}).decode()
    return text if len(text) <= _TAG_CAP else "{}"


def last_look(tags: Mapping[str, str], rollout: str) -> StepVerdict | None:
    """The last look at a rollout, if somebody left one."""
    try:
        document = orjson.loads(tags.get(LOOK, ""))
    except orjson.JSONDecodeError:
        return None
    if not isinstance(document, dict) or document.get("rollout") != rollout:
        return None
    return verdict_from_document(document)


def leftovers(tags: Mapping[str, str], rollout: str | None) -> tuple[str, ...]:
    """The tags of rollouts other than this one, or of all of them; they say nothing to anybody any more."""
    return tuple(
        tag
        for tag, text in sorted(tags.items())
        if (tag in {LEASE, LOOK} or tag.startswith(ARMS)) and (rollout is None or _rollout(text) != rollout)
    )


def _rollout(text: str) -> Any:
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return document.get("rollout") if isinstance(document, dict) else None


def _without(arms: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {
        arm: {key: value for key, value in counts.items() if key not in keys} for arm, counts in arms.items()
    }

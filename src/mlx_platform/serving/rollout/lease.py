"""The lease of whoever leads a rollout: a count that goes up as long as somebody is there.

No clock is compared with another one's. A reader only sees whether the count still changes, on its own clock;
so a lease says that its holder was alive, and never that nobody else leads: that is for the journal to say.
"""

import orjson

from mlx_platform.core.values import frozen

LEASE = "mlx.rollout.lease"
_LOOKS = 3
_LEAST_SECONDS = 3.0


@frozen
class Lease:
    """Who leads which rollout, and how often that was said."""

    rollout: str
    holder: str
    renewals: int = 0

    def encode(self) -> str:
        """The text of the tag."""
        return orjson.dumps(
            {"rollout": self.rollout, "holder": self.holder, "renewals": self.renewals}
        ).decode()

    @classmethod
    def decode(cls, text: str) -> "Lease | None":
        """Read what `encode` wrote; None for anything else."""
        try:
            document = orjson.loads(text)
            return cls(str(document["rollout"]), str(document["holder"]), int(document["renewals"]))
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            return None


def patience(look_every_s: float) -> float:
    """Seconds after which a lease that did not change has ended."""
    return max(_LOOKS * look_every_s, _LEAST_SECONDS)


class LeaseWatch:
    """What one reader has seen of a lease, on its own clock."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self._changed = 0.0
        self._named = ("", "")
        self._named_at = 0.0

    def see(self, lease: Lease | None, now: float) -> None:
        """Note what the registry says at a moment of a clock that never jumps."""
        if lease != self.lease:
            self.lease, self._changed = lease, now

    def fresh(self, rollout: str, holder: str, now: float, seconds: float) -> bool:
        """Whether this holder was heard of within so many seconds."""
        lease = self.lease
        if lease is None or (lease.rollout, lease.holder) != (rollout, holder):
            return False
        return now - self._changed < seconds

    def is_awaited(self, rollout: str, holder: str, now: float, seconds: float) -> bool:
        """Whether the journal has named this holder for less than so many seconds, as far as this reader saw.

        Whoever takes over writes its lease after its event: until then its lease is not one that has ended.
        Whoever has said goodbye is not waited for.
        """
        if self.lease == Lease(rollout, ""):
            return False
        if self._named != (rollout, holder):
            self._named, self._named_at = (rollout, holder), now
        return now - self._named_at < seconds

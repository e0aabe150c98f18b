"""What a smaller model must reach besides its answers: speed and size."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlx_platform.core.errors import UsageError
from mlx_platform.core.verdict import Check, Verdict

if TYPE_CHECKING:
    from mlx_platform.quantize.latency import Race


SPEED, SIZE = "speedup", "size_ratio"
NOTICEABLE_MS = 1.0
"""A row that takes less is too quick for anybody to notice that it takes longer."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What nobody asks for by name is expected all the same: neither larger nor slower than the source.

    Attributes:
        min_speedup: how many times as fast it must be; 0 takes any speed. None refuses what was shown to be
            slower, if a row takes long enough to notice.
        max_size_ratio: its largest share of the size.
        for_size: whether the method was chosen for its size, so that only a speed asked for is looked at.
    """

    min_speedup: float | None = None
    max_size_ratio: float = 1.0
    for_size: bool = False

    def __post_init__(self) -> None:
        """Refuse wishes that mean nothing.

        Raises:
            UsageError: names the flag.
        """
        if self.min_speedup is not None and not 0 <= self.min_speedup < 1000:
            raise UsageError(
                f"A speed-up of {self.min_speedup:g} cannot be asked for.",
                hint="Write --min-speedup 1.2, or --min-speedup 0 to take any speed.",
            )
        if not 0 < self.max_size_ratio < 1000:
            raise UsageError(
                f"A size of {self.max_size_ratio:g} times the size cannot be asked for.",
                hint="Write --max-size-ratio 0.3 for three tenths of the size.",
            )

    def met(self, race: "Race", size_ratio: float) -> bool:
        return all(answer.check.verdict is Verdict.PASS for answer in self.answers(race, size_ratio))

    def answers(self, race: "Race", size_ratio: float) -> "tuple[WishAnswer, ...]":
        """An answer for every wish that there is."""
        return tuple(self._answers(race, size_ratio))

    def _answers(self, race: "Race", size_ratio: float) -> "Iterator[WishAnswer]":
        if self.min_speedup:
            fast = race.speedup >= self.min_speedup
            message = "" if fast else "it is not that much faster on this machine"
            if fast and race.lower < self.min_speedup:
                message = "its interval reaches below that"
            yield _speed_answer(race, self.min_speedup, f">= {self.min_speedup:g}", message, passed=fast)
        elif self.min_speedup is None and not self.for_size and race.after_ms >= NOTICEABLE_MS:
            slower = race.upper < 1
            message = (
                f"it is slower than its source on this machine: {race.after_ms:.3g} ms a row"
                f" instead of {race.before_ms:.3g} ms"
                if slower
                else ""
            )
            yield _speed_answer(race, 1.0, "reaches 1", message, passed=not slower)
        small = size_ratio <= self.max_size_ratio
        check = Check(
            name=SIZE,
            verdict=Verdict.PASS if small else Verdict.FAIL,
            measured=f"{size_ratio:.3f}",
            threshold=f"<= {self.max_size_ratio:g}",
            message="" if small else "it is larger than that",
            group="gates",
        )
        yield WishAnswer(check, "max", size_ratio, self.max_size_ratio, size_ratio, size_ratio)


def _speed_answer(race: "Race", threshold: float, shown: str, message: str, *, passed: bool) -> "WishAnswer":
    check = Check(
        name=SPEED,
        verdict=Verdict.PASS if passed else Verdict.FAIL,
        measured=f"{race.speedup:.2f} [{race.lower:.2f}, {race.upper:.2f}]",
        threshold=shown,
        message=message,
        group="gates",
    )
    return WishAnswer(check, "min", race.speedup, threshold, race.lower, race.upper)


@dataclass(frozen=True, slots=True)
class WishAnswer:
    """A wish with what was measured and its interval."""

    check: Check
    limit: str
    measured: float
    threshold: float
    lower: float
    upper: float

    def document(self) -> dict[str, Any]:
        """With the keys of the other gates; see `Judged.document`."""
        return {
            "name": f"{self.check.name} {self.check.threshold}",
            "metric": self.check.name,
            "limit": self.limit,
            "level": "fail",
            "verdict": str(self.check.verdict),
            "shown": self.check.measured,
            "message": self.check.message,
            "skipped": self.check.skipped,
            "measured": self.measured,
            "threshold": self.threshold,
            "lower": self.lower,
            "upper": self.upper,
        }

"""What a smaller model must reach besides its answers: speed and size."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlx_platform.core.errors import UsageError
from mlx_platform.core.verdict import Check, Verdict

if TYPE_CHECKING:
    from mlx_platform.quantize.latency import Race


@dataclass(frozen=True, slots=True)
class Wishes:
    """`min_speedup` is how many times as fast it must be, `max_size_ratio` its largest share of the size.

    One that is larger than its source is of no use to anybody who has not said so.
    """

    min_speedup: float | None = None
    max_size_ratio: float = 1.0

    def __post_init__(self) -> None:
        """Refuse wishes that mean nothing.

        Raises:
            UsageError: names the flag.
        """
        if self.min_speedup is not None and not 0 < self.min_speedup < 1000:
            raise UsageError(
                f"A speed-up of {self.min_speedup:g} cannot be asked for.", hint="Write --min-speedup 1.2."
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
        if self.min_speedup is not None:
            fast = race.speedup >= self.min_speedup
            message = "" if fast else "it is not that much faster on this machine"
            if fast and race.lower < self.min_speedup:
                message = "its interval reaches below that"
            check = Check(
                name="speedup",
                verdict=Verdict.PASS if fast else Verdict.FAIL,
                measured=f"{race.speedup:.2f} [{race.lower:.2f}, {race.upper:.2f}]",
                threshold=f">= {self.min_speedup:g}",
                message=message,
                group="gates",
            )
            yield WishAnswer(check, "min", race.speedup, self.min_speedup, race.lower, race.upper)
        small = size_ratio <= self.max_size_ratio
        check = Check(
            name="size_ratio",
            verdict=Verdict.PASS if small else Verdict.FAIL,
            measured=f"{size_ratio:.3f}",
            threshold=f"<= {self.max_size_ratio:g}",
            message="" if small else "it is larger than that",
            group="gates",
        )
        yield WishAnswer(check, "max", size_ratio, self.max_size_ratio, size_ratio, size_ratio)


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

"""The four outcomes that every gate and check in the platform can have, and how several become one."""

from collections.abc import Iterable
from enum import StrEnum

from mlx_platform.core.values import frozen


class Verdict(StrEnum):
    PASS = "pass"  # noqa: S105 - an outcome, not a secret
    UNDECIDED = "undecided"
    ERROR = "error"
    FAIL = "fail"

    @property
    def exit_code(self) -> int:
        """The exit code of a command that ends with this verdict."""
        return _EXIT_CODES[self]


_EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 5, Verdict.UNDECIDED: 7, Verdict.ERROR: 7}
_SEVERITY = (Verdict.PASS, Verdict.UNDECIDED, Verdict.ERROR, Verdict.FAIL)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Combine verdicts: pass < undecided < error < fail. No verdict at all is undecided, never a pass."""
    return max(verdicts, key=_SEVERITY.index, default=Verdict.UNDECIDED)


@frozen
class Check:
    """One question with its answer, as gates, drift features and consistency rates all ask it.

    `skipped` holds the reason when the check was left out on purpose; it then decides nothing. `part` names
    the rows that it is about where these are not all, such as `lang=de`. `values` are its numbers by name, as
    text. `file` and `line` (from 1, 0 when unknown) say where it is asked.
    """

    name: str
    verdict: Verdict
    measured: str
    threshold: str
    message: str = ""
    group: str = ""
    skipped: str = ""
    part: str = ""
    values: tuple[tuple[str, str], ...] = ()
    file: str = ""
    line: int = 0

    @property
    def title(self) -> str:
        """The question in full: `accuracy max_drop 1pp [slice lang=de]`, `agreement >= 0.99 [digits/3]`."""
        asked = f"{self.name} {self.threshold}".strip()
        if not self.part:
            return asked
        return f"{asked} [slice {self.part}]" if "=" in self.part else f"{asked} [{self.part}]"


def verdict_of(checks: Iterable[Check]) -> Verdict:
    """The worst verdict of the checks that decided something; undecided when none did."""
    return worst(check.verdict for check in checks if not check.skipped)


def worst_first(checks: Iterable[Check]) -> tuple[Check, ...]:
    """The checks by what must be looked at first; those that decide nothing come last, in their order."""
    return tuple(sorted(checks, key=lambda check: (bool(check.skipped), -_SEVERITY.index(check.verdict))))

"""Which records of a log of ours have been counted, so that none is counted again."""

from bisect import bisect_right
from dataclasses import dataclass, field

from mlx_platform.drift.account import Account, runs_of
from mlx_platform.traffic.record import Record

_SETTLE = 1 << 16


@dataclass(slots=True)
class Taking:
    """Takes each record once.

    Records of other platforms have no numbers; their files are accounted for as a whole.
    """

    before: Account
    repeated: int = 0
    taken: Account = field(default_factory=Account)
    _waiting: dict[str, list[int]] = field(default_factory=dict)
    _starts: dict[str, list[int]] = field(default_factory=dict)

    def __call__(self, record: Record) -> bool:
        """Whether a record is still to be counted; it then counts as taken."""
        if record.foreign:
            return True
        stream = f"{record.server_id}/{record.boot_id}"
        if self._known(stream, record.seq):
            self.repeated += 1
            return False
        waiting = self._waiting.setdefault(stream, [])
        waiting.append(record.seq)
        if len(waiting) >= _SETTLE:
            self._settle()
        return True

    def account(self) -> Account:
        """What was taken here."""
        self._settle()
        return self.taken

    def _known(self, stream: str, number: int) -> bool:
        runs = self.before.runs.get(stream)
        if runs is None:
            return False
        starts = self._starts.get(stream)
        if starts is None:
            starts = self._starts[stream] = runs[:, 0].tolist()
        at = bisect_right(starts, number) - 1
        return at >= 0 and number < int(runs[at, 1])

    def _settle(self) -> None:
        found = {stream: runs_of(numbers) for stream, numbers in self._waiting.items() if numbers}
        self.taken = self.taken + Account(found)
        self._waiting = {}

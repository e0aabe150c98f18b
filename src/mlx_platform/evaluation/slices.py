"""Slices: rows that share the values of one or more columns, measured and judged apart."""

from dataclasses import dataclass

from mlx_platform.evaluation.gates import Key
from mlx_platform.evaluation.judge import Judged
from mlx_platform.evaluation.measure import Measurement


@dataclass(frozen=True, slots=True)
class SliceResult:
    """What was found out about one slice.

    Attributes:
        by: the columns that make it.
        key: the columns with the slice's values.
        rows: how many it has; 0 for one that is asked for and has none.
        measurements: of the candidate on its rows, by metric.
        judged: the gates' answers about it.
        too_small: it has fewer rows than some gate or the report asks for.
    """

    by: tuple[str, ...]
    key: Key
    rows: int
    measurements: dict[str, Measurement]
    judged: tuple[Judged, ...] = ()
    too_small: bool = False

    @property
    def name(self) -> str:
        """`lang=de`, `lang=de, device=phone`."""
        return ", ".join(f"{column}={value}" for column, value in self.key)

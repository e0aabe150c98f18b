"""When a batch leaves, how large it may be, and how much may wait."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """`max_rows` of a run, `max_delay` in seconds, `max_queue_rows` and `max_queue_bytes` waiting.

    Where rows have more numbers than others, a run gets no more than `max_cells` of them, but one row.
    Runs of up to `inline_cells` numbers happen on the event loop, until one turns out to be slow after all;
    the others on `workers` threads. A run of less than `beside_seconds` does not start beside another that is
    as short: it would be over before a second worker is worth its price.
    """

    max_rows: int = 32
    max_cells: float = math.inf
    max_delay: float = 0.0
    max_queue_rows: int = 1024
    max_queue_bytes: int = 1 << 40
    workers: int = 1
    beside_seconds: float = 0.0
    inline_cells: float = 0

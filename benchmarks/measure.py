"""Whole processes measured fairly: taken in turn, CPU time from the operating system, ratios from one run."""

import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """One finished process: CPU seconds (user and system), and the most memory it held, in MB."""

    cpu: float
    memory: float


def cost_of(command: Sequence[str], *, cwd: str | None = None, expect: Sequence[int] = (0,)) -> Cost:
    """Run a command to its end. Its exit code must be one of `expect`."""
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in expect:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def in_turn(
    commands: Mapping[str, Sequence[str]], *, rounds: int = 7, cwd: str | None = None
) -> dict[str, list[Cost]]:
    """Run every command once per round, so that a machine that slows down slows all of them."""
    for command in commands.values():
        cost_of(command, cwd=cwd)
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            costs[name].append(cost_of(command, cwd=cwd))
    return costs


def table(title: str, rows: Sequence[Sequence[str]], columns: Sequence[str]) -> None:
    """Print an aligned table."""
    cells = [list(columns), *[list(row) for row in rows]]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    print(f"\n{title}")
    for row in cells:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def spread(values: Sequence[float]) -> str:
    """`min / median / max` in seconds."""
    return f"{min(values):.3f} / {statistics.median(values):.3f} / {max(values):.3f}"

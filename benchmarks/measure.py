"""Whole processes measured fairly: taken in turn, CPU time from the operating system, ratios from one run."""

import os
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """One finished process: CPU seconds (user and system), wall seconds, and its peak memory in MB."""

    cpu: float
    wall: float
    memory: float


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a round; one that is not `counted` only makes the state that the next one needs."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] | None = None
    counted: bool = True


def cost_of(
    command: Sequence[str],
    *,
    cwd: str | None = None,
    expect: Sequence[int] = (0,),
    environment: Mapping[str, str] | None = None,
) -> Cost:
    """Run a command to its end. Its exit code must be one of `expect`."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in expect:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return Cost(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024)


def steps_in_turn(steps: Sequence[Step], *, rounds: int = 7, cwd: str | None = None) -> dict[str, list[Cost]]:
    """Run all steps once per round, so that a machine that slows down slows all of them; round 0 warms up."""
    costs: dict[str, list[Cost]] = {step.name: [] for step in steps if step.counted}
    for number in range(rounds + 1):
        for step in steps:
            cost = cost_of(step.command, cwd=cwd, environment=step.environment)
            if step.counted and number:
                costs[step.name].append(cost)
    return costs


def in_turn(
    commands: Mapping[str, Sequence[str]], *, rounds: int = 7, cwd: str | None = None
) -> dict[str, list[Cost]]:
    """The same for commands that leave nothing behind."""
    return steps_in_turn([Step(name, command) for name, command in commands.items()], rounds=rounds, cwd=cwd)


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


def cpu(costs: Sequence[Cost]) -> float:
    """The median of the CPU seconds."""
    return statistics.median(cost.cpu for cost in costs)


def wall(costs: Sequence[Cost]) -> float:
    """The median of the wall seconds."""
    return statistics.median(cost.wall for cost in costs)

"""How much memory this process takes, and how much more it may take."""

import os
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")
_MACHINE = Path("/proc/meminfo")
_PROCESS = Path("/proc/self/statm")


def resident() -> int:
    """Bytes of this process that are in memory; 0 where the system does not say."""
    try:
        return int(_PROCESS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def available() -> int | None:
    """Bytes that this process can still have, by the machine and by its control group; None when unknown."""
    found = [count for count in (_of_machine(), _of_group()) if count is not None]
    return min(found, default=None)


def _of_machine() -> int | None:
    try:
        lines = _MACHINE.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _of_group() -> int | None:
    """What is left of a container's limit; of the second version of control groups, then of the first.

    Cached pages of files count as used there, but give way.
    """
    for limit, usage, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most, used = ((_GROUP / name).read_text().strip() for name in (limit, usage))
            figures = ((_GROUP / usage).parent / "memory.stat").read_text()
        except OSError:
            continue
        if not most.isdigit():
            return None
        pages = sum(int(line.split()[1]) for line in figures.splitlines() if line.startswith(f"{cache} "))
        return max(0, int(most) - int(used) + pages)
    return None

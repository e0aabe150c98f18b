"""The jobs that wait for a run, in groups that may share one."""

from collections.abc import Iterator

from mlx_platform.serving.job import Group, Job

_MOST_GROUPS = 256  # that are remembered although nobody waits in them


class Waiting:
    """Groups by key, and how much waits in all of them.

    Attributes:
        rows: that wait.
        nbytes: of their inputs.
        seconds: that they are expected to take, one after the other.
        alone: the group of those that share no run.
        starved: the group of those that have once found no memory on their own.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.nbytes = 0
        self.seconds = 0.0
        self.alone = Group(joins=False)
        self.starved = Group(joins=False, exclusive=True)
        self._groups: dict[object, Group] = {}
        self._busy: dict[Group, None] = {}

    def __bool__(self) -> bool:
        return bool(self._busy)

    def __iter__(self) -> Iterator[Job]:
        """The jobs that still wait."""
        return (job for group in self._busy for line in group.lines for job in line if job.queued)

    def busy(self) -> Iterator[Group]:
        """The groups in which somebody waits."""
        return iter(self._busy)

    def only(self) -> Group | None:
        """The group in which somebody waits, where it is the only one."""
        return next(iter(self._busy)) if len(self._busy) == 1 else None

    def count(self) -> int:
        """How many groups that are."""
        return len(self._busy)

    def find(self, key: object) -> Group | None:
        """The group of a key, unless it is new or was forgotten."""
        return self._groups.get(key)

    def remember(self, key: object, group: Group) -> None:
        """Know a group by its key; when there are many, those are forgotten in which nobody waits."""
        if len(self._groups) >= _MOST_GROUPS:
            self._groups = {known: other for known, other in self._groups.items() if other.rows}
        self._groups[key] = group

    def add(self, job: Job) -> None:
        group = job.group
        if not group.rows:
            self._busy[group] = None
        job.queued = True
        group.lines[job.priority].append(job)
        group.rows += job.rows
        self.rows += job.rows
        self.nbytes += job.nbytes
        self.seconds += job.cost

    def remove(self, job: Job) -> bool:
        """Take a job out of the line, and let go of its arrays; False when it had left before."""
        if not job.queued:
            return False
        self._leave(job)
        job.feeds = {}
        return True

    def clear(self) -> list[Job]:
        """Empty every line."""
        jobs = list(self)
        for job in jobs:
            self._leave(job)
        return jobs

    def take(self, group: Group, most_rows: int) -> list[Job]:
        """The first jobs of a group that fit into one run; one that is longer than a run goes alone."""
        jobs: list[Job] = []
        rows, nbytes, seconds = 0, 0, 0.0
        for line in group.lines:
            while line:
                job = line[0]
                if job.queued:
                    if jobs and (rows + job.rows > most_rows or not group.joins):
                        break
                    job.queued = False
                    rows += job.rows
                    nbytes += job.nbytes
                    seconds += job.cost
                    jobs.append(job)
                line.popleft()
            if line:
                break
        self._lose(group, rows, nbytes, seconds)
        return jobs

    def _leave(self, job: Job) -> None:
        job.queued = False
        self._lose(job.group, job.rows, job.nbytes, job.cost)

    def _lose(self, group: Group, rows: int, nbytes: int, seconds: float) -> None:
        group.rows -= rows
        self.rows -= rows
        self.nbytes -= nbytes
        self.seconds -= seconds
        if not group.rows:
            for line in group.lines:
                line.clear()
            del self._busy[group]
        if not self.rows:
            self.seconds = 0.0  # what rounding has left behind

"""Which candidates the judging rows get to see, in which order, and how often."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlx_platform.core.errors import UndecidedError
from mlx_platform.core.statistics import wilson
from mlx_platform.core.text import plural
from mlx_platform.core.verdict import Verdict
from mlx_platform.workflows.quantization.candidates import STATIC, Candidate, Surgeon, Workshop
from mlx_platform.workflows.quantization.judgement import LEVEL, Bench, Judgement
from mlx_platform.workflows.quantization.request import AUTO

if TYPE_CHECKING:
    from mlx_platform.core.tensors import Columns
    from mlx_platform.inference.package import Package
    from mlx_platform.quantize.rule import Rule
    from mlx_platform.quantize.search import Search
    from mlx_platform.quantize.state import SearchState

SHARES = (0.6, 0.2, 0.2)
"""Of the level, for each look at the judging rows: together they err no more often than a single look."""
_UNLIKELY = 1.5  # times the tolerated relative error


def confidence_of(look: int, *, several: bool) -> float:
    """Of the one-sided test of a look, counted from 0."""
    return 1 - LEVEL * (SHARES[look] if several else 1)


@dataclass(frozen=True, slots=True)
class Look:
    """A candidate that the judging rows have seen."""

    candidate: Candidate
    package: "Package"
    judgement: Judgement

    @property
    def closeness(self) -> float:
        """The lower bound of the gain, by which those that did not pass are told apart."""
        lower = self.judgement.gate.numbers["lower"]
        return float("-inf") if lower is None else float(lower)


class Choosing:
    """Makes candidates, and shows the judging rows as few of them as it takes.

    Attributes:
        candidates: all that were made, in order.
        dropped: the methods that do not apply, each with the reason.
        surgeon: what searched for layers; None where nothing did.
        looks: what the judging rows have seen, in order.
        several: whether there can be more than one look.
    """

    def __init__(self, workshop: Workshop, bench: Bench, state: "SearchState") -> None:
        self.candidates: list[Candidate] = []
        self.dropped: dict[str, str] = {}
        self.surgeon: Surgeon | None = None
        self.looks: list[Look] = []
        self.several = False
        self._workshop = workshop
        self._bench = bench
        self._request = workshop.request
        self._wishes = workshop.request.wishes
        self._state = state

    def choose(self, answer: "Callable[[Candidate], tuple[Package, Columns]]") -> Look:
        """The first candidate that passes, or else the one that came closest.

        Args:
            answer: seals a candidate and asks it about the judging rows.

        Raises:
            UndecidedError: no method applies to the model, or its rows were looked at too often.
        """
        method, rule = self._request.method, self._request.rule
        order = self._auto(rule) if method == AUTO else self._one(method, rule)
        for candidate in order:
            number = self._state.look(_digest_of(candidate.made.files))
            if number >= (len(SHARES) if self.several else 1):
                break
            package, answers = answer(candidate)
            confidence = confidence_of(number, several=self.several)
            wishes = self._wishes.answers(candidate.race, candidate.size_ratio)
            look = Look(candidate, package, self._bench.judge(answers, wishes, confidence=confidence))
            self.looks.append(look)
            if look.judgement.verdict is Verdict.PASS:
                return look
            if not self.several:
                break
        if not self.looks:
            raise UndecidedError(
                "The judging rows have seen as many candidates as they may in this search.",
                hint="Judge by other rows, with another folder for --resume.",
            )
        return max(self.looks, key=lambda look: look.closeness)

    def _one(self, method: str, rule: "Rule") -> Iterator[Candidate]:
        base = self._made(method, rule)
        if method != STATIC or not self._searchable(base):
            yield base
            return
        self.several = True
        likely = self._likely(base)
        if likely:
            yield base
        found = False
        for candidate in self._searched(base):
            if self._wishes.met(candidate.race, candidate.size_ratio):
                found = True
                yield candidate
        if not found and not likely:
            yield base

    def _auto(self, rule: "Rule") -> Iterator[Candidate]:
        self._make_all(rule)
        statics = [candidate for candidate in self.candidates if candidate.rule is not None]
        base = min(statics, key=lambda candidate: candidate.distance.divergence, default=None)
        searchable = base is not None and self._searchable(base)
        self.several = searchable or (
            len(self.candidates) > 1 and self._bench.can_decide(confidence_of(0, several=True))
        )
        searched = self._searched(base) if base is not None and searchable else iter(())
        pool = self._promising()
        best = min((candidate.score for candidate in pool), default=float("inf"))
        if base is not None and base not in pool and base.score < best:
            # It would be the best if it were not for some of its layers.
            next(searched, None)
            pool = self._promising()
        yield from in_order(pool)
        seen = list(pool)
        for candidate in searched:
            if self._wishes.met(candidate.race, candidate.size_ratio):
                seen.append(candidate)
                yield candidate
        if not seen:
            yield min(self.candidates, key=lambda candidate: candidate.distance.loss)

    def _make_all(self, rule: "Rule") -> None:
        from mlx_platform.quantize.methods import METHODS
        from mlx_platform.quantize.rule import Rule

        other = Rule("percentile") if rule.method == "minmax" else None
        for method in METHODS:
            try:
                self._made(method, rule, histograms=other is not None)
                if method == STATIC and other is not None:
                    self._made(method, other)
            except UndecidedError as error:
                self.dropped[method] = error.message
        if not self.candidates:
            raise UndecidedError(
                f"No method makes {self._workshop.subject.ref} smaller. {next(iter(self.dropped.values()))}"
            )

    def _made(self, method: str, rule: "Rule", *, histograms: bool = False) -> Candidate:
        candidate = self._workshop.plain(method, rule, histograms=histograms)
        self.candidates.append(candidate)
        return candidate

    def _promising(self) -> list[Candidate]:
        return [
            candidate
            for candidate in self.candidates
            if self._likely(candidate) and self._wishes.met(candidate.race, candidate.size_ratio)
        ]

    def _likely(self, candidate: Candidate) -> bool:
        """Whether a look at it is worth its share of the level."""
        tolerated, loss = self._tolerated, candidate.distance.loss
        if self._bench.gate.limit == "max_rise":
            return loss <= _UNLIKELY * tolerated
        rows = self._workshop.rows.search.rows
        return wilson(loss * rows, rows, 0.9).lower <= tolerated

    def _searchable(self, base: Candidate) -> bool:
        """Whether leaving some layers in float32 can help: it can neither gain speed nor save bytes."""
        return (
            self._request.limits.evals > 0
            and len(base.made.built.plan.layers) > 1
            and self._wishes.met(base.race, base.size_ratio)
            and self._bench.can_decide(confidence_of(0, several=True))
        )

    def _searched(self, base: Candidate) -> Iterator[Candidate]:
        self.surgeon = self._workshop.search(base)
        for candidate in self.surgeon.candidates(self._tolerated, self._request.limits, self._state):
            self.candidates.append(candidate)
            yield candidate

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know about how the candidates came about."""
        search = self.surgeon.search if self.surgeon else None
        ended = ended_by(search) if search else ""
        more = (f"{ended}; --resume DIR goes on with it, given more.",) if ended else ()
        return (*self._workshop.notes, *more)

    @property
    def _tolerated(self) -> float:
        return self._bench.tolerated(confidence_of(0, several=True))


def ended_by(search: "Search") -> str:
    """What a limit took from a search, or an empty text."""
    flags = {"evals": "--max-evals", "time": "--max-minutes"}
    if search.stopped:
        return f"{flags[search.stopped]} ended the search for layers early"
    if search.cut:
        layers = f"{search.unranked:,} of {plural(search.unranked + len(search.ranking), 'layer')}"
        return f"{flags[search.cut]} left no room to look at {layers} alone"
    return ""


def in_order(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The order of looks: the best of each method before another of the same, which would decide alike.

    Of more candidates than there are looks, the one that changes the answers least gets the last of them.
    """
    by_score = sorted(candidates, key=lambda candidate: candidate.score)
    first_of: dict[str, Candidate] = {}
    for candidate in by_score:
        best = first_of.setdefault(candidate.made.method, candidate)
        # Other ranges in the same graph: only chance tells their times apart.
        same = candidate.reverted == best.reverted
        if same and candidate.distance.divergence < best.distance.divergence:
            first_of[candidate.made.method] = candidate
    order = sorted(by_score, key=lambda candidate: first_of[candidate.made.method] is not candidate)
    last = len(SHARES) - 1
    safest = min(order, key=lambda candidate: candidate.distance.divergence, default=None)
    if safest is not None and order.index(safest) > last:
        order.remove(safest)
        order.insert(last, safest)
    return order


def _digest_of(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()

"""Smaller models of one source: made, measured on rows that do not judge, and raced against it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from mlx_platform.core.text import plural
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.quantization.distance import AnswerDistance
from mlx_platform.workflows.quantization.request import Request
from mlx_platform.workflows.quantization.rows import Rows, feeds
from mlx_platform.workflows.subject import Subject

if TYPE_CHECKING:
    from mlx_platform.core.tensors import Tensors
    from mlx_platform.inference.model import Model
    from mlx_platform.quantize.calibrate import Range
    from mlx_platform.quantize.latency import Race
    from mlx_platform.quantize.methods import Made
    from mlx_platform.quantize.prepare import Prepared
    from mlx_platform.quantize.rule import Rule
    from mlx_platform.quantize.search import Limits, Memory, Proposal, Reverted, Search
    from mlx_platform.quantize.sensitivity import Distance, Meter
    from mlx_platform.quantize.surgery import Surgery

BATCH = 32
STATIC = "static"
_RACE_SECONDS = 1.5
_STAYED = "In integers it changed too many answers."


@dataclass(frozen=True, slots=True)
class Candidate:
    """A smaller model with what was measured of it without looking at a label.

    `race` is about one row at a time, `batch_race` about `BATCH` rows at once where the model takes them.
    `rule` chose its ranges, where it has any; `reverted` are layers that a search left in float32.
    """

    name: str
    made: "Made"
    distance: "Distance"
    race: "Race"
    batch_race: "Race | None"
    rule: "Rule | None" = None
    reverted: "Reverted" = field(default_factory=frozenset)

    @property
    def size_ratio(self) -> float:
        return self.made.verified.size_after / self.made.verified.size_before

    @property
    def score(self) -> float:
        """Small for what is small and fast: size and time, each as a share of the source's, multiplied."""
        return self.size_ratio / self.race.speedup


@dataclass(frozen=True)
class Workshop:
    """Makes candidates of one source in a private folder; nothing of it outlives the folder."""

    context: Context
    subject: Subject
    model: "Model"
    rows: Rows
    request: Request
    folder: Path
    notes: list[str] = field(default_factory=list)

    @cached_property
    def prepared(self) -> "Prepared":
        from mlx_platform.quantize.prepare import prepare

        return prepare(
            self.subject.package.model_path,
            self.folder,
            self.probe,
            threads=self.threads,
            name=self.subject.ref,
            methods=self.request.methods,
        )

    @cached_property
    def probe(self) -> "list[Tensors]":
        return list(feeds(self.model, self.rows.calibration.first()))

    @property
    def threads(self) -> int:
        return self.model.session.threads

    def plain(self, method: str, rule: "Rule", *, histograms: bool = False) -> Candidate:
        """The candidate of a method with everything that it takes.

        Args:
            method: a key of `METHODS`.
            rule: chooses the ranges of activations, where the method has any.
            histograms: watch more than the rule needs, because another rule will be asked for as well.

        Raises:
            UndecidedError: the method does not apply to the model.
            UsageError: a calibration row cannot be used.
        """
        from mlx_platform.quantize.methods import make, recipe_of

        calibrated = recipe_of(method).calibrated
        ranges = self._ranges(rule, histograms=histograms) if calibrated else None
        with self.context.progress.stage(f"making {method}"):
            made = make(
                method,
                self.prepared,
                self._place(),
                self.probe,
                self.request.target,
                ranges=ranges,
                threads=self.threads,
            )
        default = not calibrated or rule.method == "minmax"
        return self._measured(method if default else f"{method}, {rule}", made, rule if calibrated else None)

    def search(self, base: Candidate) -> "Surgeon":
        """What takes layers of a candidate of static quantization back to float."""
        from mlx_platform.quantize.surgery import Surgery

        made = base.made
        return Surgeon(self, base, Surgery(self.prepared.path, made.path, made.built.plan))

    def measure(self, path: Path) -> "Distance":
        return self._meter.measure(path)

    def finished(self, base: Candidate, proposal: "Proposal", surgeon: "Surgeon") -> Candidate:
        """The candidate that a search proposes, verified like any other."""
        from mlx_platform.quantize.verify import layer_errors, verify

        path, reverted = self._place(), proposal.reverted
        with self.context.progress.stage("making the candidate"):
            surgeon.surgery.write(reverted, path)
            built = replace(
                base.made.built,
                plan=surgeon.surgery.kept(reverted),
                left_out={**base.made.built.left_out, **dict.fromkeys(sorted(reverted), _STAYED)},
            )
            found = verify(self.prepared.original, path, self.probe, self.folder, threads=self.threads)
            errors = layer_errors(
                self.prepared.path, path, built.plan, self.probe, self.folder, threads=self.threads
            )
        made = replace(base.made, path=path, built=built, verified=found, layer_errors=errors)
        name = f"{base.name}, {plural(len(reverted), 'layer')} in float32"
        return self._measured(name, made, base.rule, reverted, proposal.distance)

    def _measured(
        self,
        name: str,
        made: "Made",
        rule: "Rule | None",
        reverted: "Reverted" = frozenset(),
        distance: "Distance | None" = None,
    ) -> Candidate:
        with self.context.progress.stage(f"measuring {name}"):
            distance = distance or self.measure(made.path)
            lone, batch = self._races(made.path)
        return Candidate(name, made, distance, lone, batch, rule, reverted)

    def _ranges(self, rule: "Rule", *, histograms: bool) -> "Mapping[str, Range]":
        from mlx_platform.quantize.cache import CalibrationCache
        from mlx_platform.quantize.static import observe

        settings, calibration = self.context.settings, self.rows.calibration
        cache = CalibrationCache(
            settings.path(settings.cache.dir) / "calibration", self.rows.identity(self.subject.package)
        )
        with self.context.progress.stage("calibrating", total=calibration.rows) as advance:
            recalled = observe(
                self.prepared,
                feeds(self.model, calibration),
                self.folder,
                cache,
                extremes_only=rule.extremes_only and not histograms,
                threads=self.threads,
                advance=advance,
                row_name=calibration.name,
            )
        if recalled.note:
            self.notes.append(recalled.note)
        return rule.ranges(recalled.seen)

    @cached_property
    def _meter(self) -> "Meter":
        from mlx_platform.quantize.sensitivity import Meter, by_shape, run_all

        batches = by_shape(feeds(self.model, self.rows.search))
        original = run_all(self.subject.package.model_path, batches, threads=self.threads)
        return Meter(batches, AnswerDistance(self.model, original), threads=self.threads)

    def _races(self, path: Path) -> "tuple[Race, Race | None]":
        """A lone row, and a batch as a busy server makes it."""
        from mlx_platform.quantize.latency import clock_of, race
        from mlx_platform.quantize.runtime import start

        sessions = [start(one, threads=self.threads) for one in (self.subject.package.model_path, path)]

        def run(inputs: "Tensors") -> "Race":
            before, after = (lambda s=session: s.run(None, dict(inputs)) for session in sessions)
            return race(before, after, seconds=_RACE_SECONDS, clock=clock_of(self.threads))

        calibration = self.rows.calibration
        lone = run(next(feeds(self.model, calibration.first(1))))
        fixed = any(spec.shape[:1] != (None,) for spec in self.model.spec.inputs)
        if fixed or calibration.rows < BATCH:
            return lone, None
        batch = calibration.first(BATCH)
        with batch.named():
            inputs = self.model.encode(batch.columns)
        return lone, run(inputs)

    def _place(self) -> Path:
        """A folder of its own for every candidate, for large ones are several files."""
        number = sum(1 for entry in self.folder.iterdir() if entry.is_dir())
        folder = self.folder / f"candidate-{number}"
        folder.mkdir()
        return folder / "model.onnx"


class Surgeon:
    """Looks for the layers of a candidate that must stay in float32.

    Attributes:
        base: the candidate with every layer in integers.
        surgery: cuts the others.
        search: the search, once it has begun.
    """

    def __init__(self, workshop: Workshop, base: Candidate, surgery: "Surgery") -> None:
        self.base = base
        self.surgery = surgery
        self.search: Search | None = None
        self._workshop = workshop
        self._advance: Callable[[int], None] = lambda _measured: None

    def candidates(
        self, tolerated: float, limits: "Limits", memory: "Memory | None" = None
    ) -> Iterator[Candidate]:
        """What the search proposes, from the loosest to the strictest.

        Args:
            tolerated: the loss that is good enough.
            limits: of the search.
            memory: of what was measured before.
        """
        from mlx_platform.quantize.search import Search

        errors = [entry.node for entry in self.base.made.layer_errors]
        layers = dict.fromkeys(
            [*(node for node in errors if node in self.surgery.layers), *self.surgery.layers]
        )
        self.search = Search(
            {node: self.surgery.cost(node) for node in layers},
            self._measure,
            tolerated,
            limits,
            memory=memory,
            advance=self._done,
        )
        proposals = self.search.proposals()
        expected: int | None = self.search.expected
        while True:
            with self._workshop.context.progress.stage("searching layers", total=expected) as self._advance:
                proposal = next(proposals, None)
            if proposal is None:
                return
            yield self._workshop.finished(self.base, proposal, self)
            expected = None

    def _done(self, units: int) -> None:
        self._advance(units)

    def _measure(self, reverted: "Reverted") -> "Distance":
        from mlx_platform.quantize.storage import remove

        path = self.surgery.write(reverted, self._workshop.folder / "variant.onnx")
        try:
            return self._workshop.measure(path)
        finally:
            remove(path)

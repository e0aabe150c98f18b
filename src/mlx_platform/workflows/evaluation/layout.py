"""Which columns of a file are inputs of the models, and what the others are for."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import EvaluationSettings
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.evaluation.gates import DatasetRules
from mlx_platform.workflows.evaluation.answerer import Answerer

if TYPE_CHECKING:
    from mlx_platform.inference.sources.source import Source

_USUAL_IDS = ("id", "path")


@dataclass(frozen=True, slots=True)
class Layout:
    """The names of the columns; empty where there is none.

    Attributes:
        features: those that each model is given, in its order.
        slices: those that slices are made of; a model may take them as well.
        id_asked: the id was named, rather than found under a usual name.
    """

    label: str
    id: str
    weight: str
    group: str
    query: str
    slices: tuple[str, ...]
    features: tuple[tuple[str, ...], ...]
    warnings: tuple[str, ...] = ()
    id_asked: bool = False

    @property
    def kept(self) -> tuple[str, ...]:
        """What is kept of every row beside its name and its truth."""
        names = (self.weight, self.group, self.query, *self.slices)
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def columns(self) -> tuple[str, ...]:
        """Everything that is read."""
        taken = [name for names in self.features for name in names]
        names = (*taken, self.label, self.id, *self.kept)
        return tuple(dict.fromkeys(name for name in names if name))


def no_weights(name: str) -> str:
    """What to say where the settings name a column of weights that a file has not got."""
    return f"There is no column {printable(name)!r} for weights; every row counts the same."


def usual_id(columns: Collection[str], taken: Collection[str]) -> str:
    """The column that names the rows where nobody says which; nothing where there is none."""
    return next((name for name in _USUAL_IDS if name in columns and name not in taken), "")


def lay_out(
    source: "Source",
    rules: DatasetRules,
    settings: EvaluationSettings,
    answerers: Sequence[Answerer],
    *,
    slices: Sequence[str],
) -> Layout:
    """Tell inputs from label, id, weight, group, query and slices.

    A column that a model takes by name is an input of it, whatever else it is.

    Args:
        source: the file.
        rules: what the command line and the gate file say about it, before the settings.
        settings: the usual names.
        answerers: the candidate, then its baselines.
        slices: further columns to keep.

    Raises:
        UsageError: there is no such column.
    """
    warnings = []
    truth = rules.label or settings.label
    named = rules.id or settings.id
    weight = rules.weight
    if not weight and settings.weight:
        weight = settings.weight if settings.weight in source.columns else ""
        if not weight:
            warnings.append(no_weights(settings.weight))
    slices = tuple(dict.fromkeys(slices))
    for name in (truth, named, weight, rules.group, rules.query, *slices):
        if name:
            source.require(name)
    taken = {
        truth,
        weight,
        rules.group,
        rules.query,
        *slices,
        *(name for one in answerers for name in one.model.columns),
    }
    usual = usual_id(source.columns, taken)
    aside = {truth, named or usual, weight or "weight", rules.group, rules.query}
    if (
        not weight
        and "weight" in source.columns
        and not any("weight" in one.model.columns for one in answerers)
    ):
        warnings.append("The column 'weight' is no input, and no weight unless dataset.weight names it.")
    return Layout(
        truth,
        named or usual,
        weight,
        rules.group,
        rules.query,
        slices,
        tuple(_features(source, one, aside, slices) for one in answerers),
        tuple(warnings),
        id_asked=bool(named),
    )


def _features(
    source: "Source", answerer: Answerer, aside: set[str], slices: Sequence[str]
) -> tuple[str, ...]:
    model = answerer.model
    if model.columns:
        missing = next((name for name in model.columns if name not in source.columns), None)
        if missing is not None:
            raise UsageError(
                f"{source.path} has no column {printable(missing, 128)!r}, which {answerer.role} takes.",
                hint=did_you_mean(missing, source.columns),
            )
        return tuple(dict.fromkeys(model.columns))
    taken = tuple(name for name in source.columns if name not in aside)
    shape = model.spec.inputs[0].shape
    without = tuple(name for name in taken if name not in slices)
    # A model that takes all columns in order says how many these are, and so whether slices are among them.
    fits = len(shape) == 2 and shape[1] == len(taken)
    features = taken if fits else without or taken
    if not features:
        raise UsageError(
            f"{source.path} has no columns beside {', '.join(sorted(aside & set(source.columns)))}."
        )
    return features

"""The truth column and the answers of a model, brought to the codes and numbers that metrics take."""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.core.tensors import Array, Columns
from mlx_platform.core.text import did_you_mean, listed, printable
from mlx_platform.evaluation.resample import Codes, Floats
from mlx_platform.evaluation.scored import Classified, Mask, Predicted, Ranked, Scored, Tagged

_LABELS_SHOWN = 12
_NO_LABEL_HINT = "Remove the rows without a truth, or name another column with --label."
_WEIGHT_HINT = "A weight is a number from 0. Correct the row, or name another column with --weight."


def score(
    task: str,
    truth: Array,
    answers: Columns,
    labels: Sequence[str] = (),
    *,
    among: Sequence[str] = (),
    column: str = "label",
    weights: Array | None = None,
    groups: Array | None = None,
    queries: Array | None = None,
    positive: str = "",
) -> Scored:
    """Put answers beside the truth.

    Args:
        task: `classification`, `multilabel`, `regression` or `ranking`.
        truth: the true labels or numbers [rows], as they stand in a file. Several labels of one row are a
            list, or text such as `cat|dog`; a row without any has an empty one. Of a ranking, the relevance.
        answers: what the model said: `label` [rows] or `label_index` [rows], and `probabilities`
            [rows, classes] where there are any; `labels` [rows] and `probabilities` of several labels each;
            or `value` [rows].
        labels: the labels in the order of the model's classes; those of the probabilities' columns.
        among: all labels that a truth may have, where that is more than the model knows; the codes are
            theirs. Two models with different labels are compared among the labels of both.
        column: the name of the truth column, for messages.
        weights: what each row counts [rows], finite and not negative; None for one each.
        groups: which rows belong together [rows], as values of any kind; None where rows are independent.
        queries: of a ranking, which rows compete with each other [rows], as values of any kind.
        positive: of two classes, the one that precision and recall are about; the second one by default.

    Raises:
        UsageError: a truth is missing, of the wrong type, or a label that the model does not know; a weight
            that is none; a ranking without queries.
        UndecidedError: there are no rows, or the task has no metrics.
    """
    if len(truth) == 0:
        raise UndecidedError("There are no rows to evaluate on.")
    weighed = None if weights is None else weight_numbers(weights)
    grouped = None if groups is None else group_codes(groups)
    if task == "regression":
        return Predicted(numbers(truth, column), _numeric_answers(answers), weighed, grouped)
    if task == "ranking":
        return _ranked(truth, answers, column, weighed, grouped, queries)
    if task not in ("classification", "multilabel"):
        raise UndecidedError(
            f"A model for {task} cannot be evaluated: its outputs have no meaning to compare with a truth.",
            hint='Declare task = "classification" or "regression" in its model.toml and register it again.',
        )
    labels = model_labels(answers, labels)
    among = tuple(among) or labels
    place = np.array([among.index(label) for label in labels], dtype=np.int64)
    probabilities = _placed(answers.get("probabilities"), place, len(among))
    if task == "multilabel":
        said = tag_mask(answers["labels"], among, "labels")
        return Tagged(tag_mask(truth, among, column), said, probabilities, weighed, grouped, among)
    return Classified(
        truth=label_codes(truth, among, column),
        answer=place[_answered_codes(answers, labels)],
        probabilities=probabilities,
        classes=len(among),
        weights=weighed,
        groups=grouped,
        labels=among,
        positive=_positive(positive, among),
    )


def _ranked(
    truth: Array,
    answers: Columns,
    column: str,
    weights: Floats | None,
    groups: Codes | None,
    queries: Array | None,
) -> Ranked:
    if queries is None:
        raise UsageError(
            "A ranking needs the column that says which rows belong to one query.",
            hint='Name it as query = "..." in the dataset table of the gate file.',
        )
    relevance = numbers(truth, column)
    below = np.flatnonzero(relevance < 0)
    if len(below):
        raise _bad_row(column, int(below[0]), f"holds the relevance {relevance[below[0]]:g}, less than none")
    return Ranked(relevance, _numeric_answers(answers), group_codes(queries), weights, groups)


def _positive(label: str, labels: Sequence[str]) -> int:
    if not label:
        return 1
    if label not in labels:
        raise UsageError(
            f"The positive class {printable(label, 80)!r} is none of the model's.",
            hint=f"{did_you_mean(label, labels)} Known: {listed(labels, _LABELS_SHOWN, width=40)}.",
        )
    return list(labels).index(label)


def weight_numbers(cells: Array, column: str = "weight") -> Floats:
    """What the rows count [rows].

    Raises:
        UsageError: names the first row that is missing, not finite, negative, or no number.
    """
    try:
        weights = numbers(cells, column)
    except UsageError as error:
        raise UsageError(error.message, hint=_WEIGHT_HINT, **error.details) from error
    below = np.flatnonzero(weights < 0)
    if len(below):
        row = int(below[0])
        raise _bad_row(column, row, f"holds {weights[row]:g}, which is no weight", _WEIGHT_HINT)
    return weights


def is_empty(cell: object) -> bool:
    """Whether a cell holds nothing: no value, NaN, or a text of blanks."""
    if isinstance(cell, str | bytes):
        return not cell.strip()
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def group_codes(column: Array) -> Codes:
    """Codes from 0 for the values of a column [rows]; rows without a value belong to nobody else's group."""
    codes: dict[object, int] = {}
    found = np.empty(len(column), np.int64)
    for row, cell in enumerate(column.tolist()):
        key = ("row", row) if is_empty(cell) else cell if isinstance(cell, Hashable) else repr(cell)
        found[row] = codes.setdefault(key, len(codes))
    return found


def tag_mask(cells: Array, labels: Sequence[str], column: str = "label") -> Mask:
    """Which classes each row has [rows, classes], from lists of labels or text such as `cat|dog`.

    Raises:
        UsageError: names the first row with a missing cell or an unknown label.
    """
    known = {label: code for code, label in enumerate(labels)}
    mask = np.zeros((len(cells), len(labels)), np.bool_)
    for row, cell in enumerate(cells.tolist()):
        if cell is None or (isinstance(cell, float) and math.isnan(cell)):
            raise _bad_row(column, row, "holds no value", _EMPTY_HINT)
        for one in _several(cell):
            code = next((known[text] for text in _spellings(one) if text in known), None)
            if code is None:
                raise _bad_row(column, row, *_unknown_label(one, labels))
            mask[row, code] = True
    return mask


_SEPARATOR = "|"
_EMPTY_HINT = "Write an empty text, or an empty list, for a row without any label."


def _several(cell: Any) -> Sequence[Any]:
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8", "replace")
    if isinstance(cell, str):
        nothing = cell.strip() in {"", _SEPARATOR}
        return [] if nothing else [part.strip() for part in cell.split(_SEPARATOR)]
    if isinstance(cell, np.ndarray):
        return list(cell.tolist())
    return cell if isinstance(cell, list | tuple) else [cell]


CLASS_TASKS = ("classification", "multilabel")
"""Tasks whose models have classes with labels."""


def model_labels(answers: Columns, labels: Sequence[str] = ()) -> tuple[str, ...]:
    """The labels of a model's classes; their numbers when it declares none.

    Raises:
        UsageError: it declares none, and its answers do not tell how many classes there are.
    """
    if labels:
        return tuple(labels)
    if "probabilities" not in answers:
        raise UsageError(
            "The model declares no labels.", hint="List them as labels = [...] in its model.toml."
        )
    return tuple(str(index) for index in range(answers["probabilities"].shape[1]))


def _placed(probabilities: Array | None, place: Codes, classes: int) -> Floats | None:
    if probabilities is None:
        return None
    if len(place) == classes and np.array_equal(place, np.arange(classes)):
        return probabilities  # as they are: they may be many
    placed = np.zeros((len(probabilities), classes))
    placed[:, place] = probabilities
    return placed


def _answered_codes(answers: Columns, labels: Sequence[str]) -> Codes:
    if "label_index" in answers:
        return answers["label_index"].astype(np.int64)
    codes = {label: code for code, label in enumerate(labels)}
    return np.array([codes[str(cell)] for cell in answers["label"].tolist()], dtype=np.int64)


def _numeric_answers(answers: Columns) -> Floats:
    return answers["value"].reshape(-1).astype(np.float64)


def label_codes(truth: Array, labels: Sequence[str], column: str = "label") -> Codes:
    """The class code of every row [rows]; labels are compared as text, so 3, 3.0 and "3" are one label.

    Raises:
        UsageError: names the first row whose label is missing or unknown, and the known labels.
    """
    known = {label: code for code, label in enumerate(labels)}

    def code_of(cell: Any) -> int | None:
        return next((known[text] for text in _spellings(cell) if text in known), None)

    return _by_value(
        truth,
        code_of,
        np.int64,
        lambda cell: _unknown_label(cell, labels),
        column,
        ("has no label", _NO_LABEL_HINT),
    )


def unknown_labels(truth: Array, labels: Sequence[str], *, several: bool = False) -> tuple[str, ...]:
    """Labels in a truth column that a model does not know, in the order in which they are met.

    Args:
        truth: labels [rows].
        labels: those of the model.
        several: a row may have any number of labels.
    """
    known = set(labels)
    met: dict[str, None] = {}
    for cell in truth.tolist():
        for one in _several(cell) if several else (cell,):
            spelt = _spellings(one)
            if known.isdisjoint(spelt):
                met.setdefault(spelt[-1])
    return tuple(met)


def _spellings(cell: Any) -> tuple[str, ...]:
    if isinstance(cell, bytes):
        return (cell.decode("utf-8", "replace"),)
    if isinstance(cell, bool):
        return (str(cell), str(cell).lower(), str(int(cell)))
    # A column of whole numbers becomes one of floats on its way through many a tool.
    if isinstance(cell, float) and cell.is_integer():
        return (str(cell), str(int(cell)))
    return (str(cell),)


def _unknown_label(cell: Any, labels: Sequence[str]) -> tuple[str, str]:
    if is_empty(cell):
        return "has no label", _NO_LABEL_HINT
    spelt, known = _is_number(cell), listed(labels, _LABELS_SHOWN, width=40)
    if spelt and not any(map(_is_number, labels)):
        return (
            f"holds numbers, such as {printable(str(cell), 60)}, where the model answers names: {known}",
            "Write the names instead of the numbers, or name the column that has them with --label.",
        )
    if not spelt and labels and all(map(_is_number, labels)):
        return (
            f"holds names, such as {printable(repr(cell), 60)}, where the model answers numbers: {known}",
            "Write the numbers, or register the model with its names as labels = [...] in model.toml.",
        )
    message = f"holds the label {printable(repr(cell), 60)}, which the model does not know"
    close = did_you_mean(str(cell), labels)
    hint = f"Known: {known}."
    return message, f"{close} {hint}" if close.startswith("Did") else hint


def _is_number(cell: Any) -> bool:
    """Whether it is a number or the text of one; `nan` may be a name."""
    try:
        return math.isfinite(float(cell))
    except (TypeError, ValueError, OverflowError):
        return False


def numbers(truth: Array, column: str = "label") -> Floats:
    """The truth as numbers [rows].

    Raises:
        UsageError: names the first row that is missing, not finite, or no number.
    """
    if truth.dtype.kind in "iuf" and truth.ndim == 1:
        values = truth.astype(np.float64)
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            held = values[bad[0]]
            problem = "holds no value" if math.isnan(held) else f"holds {held}, not a finite number"
            raise _bad_row(column, int(bad[0]), problem)
        return values

    return _by_value(truth, _number, np.float64, _no_number, column)


def _number(cell: Any) -> float | None:
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return None
    return float(cell) if math.isfinite(cell) else None


def _no_number(cell: Any) -> tuple[str, str]:
    return (
        f"holds {printable(repr(cell), 60)}, which is no finite number",
        "A model for regression is evaluated on a column of numbers.",
    )


def _by_value(
    truth: Array,
    convert: Callable[[Any], float | None],
    dtype: Any,
    explain: Callable[[Any], tuple[str, str]],
    column: str,
    nothing: tuple[str, str] = ("holds no value", ""),
) -> Array:
    """Convert cell by cell, once per distinct value; `explain` says what is wrong where that gives None."""
    if truth.ndim != 1:
        raise UsageError(
            f"The column {printable(column)!r} holds {truth.ndim - 1}-dimensional cells, not values."
        )
    seen: dict[tuple[type, Any], float | None] = {}
    converted = np.empty(len(truth), dtype=dtype)
    for row, cell in enumerate(truth.tolist()):
        if cell is None or (isinstance(cell, float) and math.isnan(cell)):
            raise _bad_row(column, row, *nothing)
        # 1, 1.0 and True are equal as keys of a dictionary, but are not spelt alike.
        key = (type(cell), cell if isinstance(cell, Hashable) else repr(cell))
        if key not in seen:
            seen[key] = convert(cell)
        value = seen[key]
        if value is None:
            raise _bad_row(column, row, *explain(cell))
        converted[row] = value
    return converted


def _bad_row(column: str, row: int, message: str, hint: str = "") -> UsageError:
    return UsageError(
        f"Row {row} of the column {printable(column)!r} {message}.",
        hint=hint or _NO_LABEL_HINT,
        row=row,
    )

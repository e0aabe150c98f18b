"""Sampled rows for those who label them: JSON Lines, CSV, or tasks of Label Studio."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import orjson

from mlx_platform.core.errors import UsageError
from mlx_platform.core.files import write_atomic
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.evaluation.sample_format import SampledRow

Format = Literal["jsonl", "csv", "label-studio"]
_BY_SUFFIX: dict[str, Format] = {".jsonl": "jsonl", ".csv": "csv", ".json": "label-studio"}
_FORMATS = ("jsonl", "csv", "label-studio")


def format_of(path: Path, wanted: str | None) -> Format:
    """What a file is to hold: what was asked for, or what its name says.

    Raises:
        UsageError: no such format, or a name that says nothing.
    """
    if wanted is None:
        found = _BY_SUFFIX.get(path.suffix.lower())
        if found is None:
            raise UsageError(
                f"The name {printable(path.name, 80)!r} does not say what the file is to hold.",
                hint="End it with .jsonl, .csv or .json (Label Studio), or name it: --to jsonl",
            )
        return found
    if wanted not in _FORMATS:
        raise UsageError(
            f"--to takes jsonl, csv or label-studio, not {printable(wanted, 40)!r}.",
            hint=did_you_mean(wanted, _FORMATS),
        )
    return wanted  # type: ignore[return-value]  # one of them


def write_rows(path: Path, rows: Sequence[SampledRow], kind: Format) -> None:
    """Write a file whole or not at all."""
    match kind:
        case "jsonl":
            content = b"".join(orjson.dumps(row.document(), option=orjson.OPT_APPEND_NEWLINE) for row in rows)
        case "csv":
            content = _csv(rows)
        case "label-studio":
            content = orjson.dumps([_task(row) for row in rows], option=orjson.OPT_INDENT_2)
    write_atomic(path, content)


def _csv(rows: Sequence[SampledRow]) -> bytes:
    inputs = list(dict.fromkeys(name for row in rows for name in row.inputs))
    answers = list(dict.fromkeys(name for row in rows for name in row.prediction))
    head = ["id", "input_hash", "strategy", "score", "inclusion_probability", "weight"]
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*head, *(f"predicted_{name}" for name in answers), *inputs, "label"])
    for row in rows:
        known = [row.id, row.input_hash, row.strategy, row.score, row.inclusion_probability, row.weight]
        table.writerow(
            [
                *known,
                *(_cell(row.prediction.get(name)) for name in answers),
                *(_cell(row.inputs.get(name)) for name in inputs),
                "",
            ]
        )
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    return orjson.dumps(value).decode() if isinstance(value, list | dict) else value


def _task(row: SampledRow) -> dict[str, Any]:
    """A task of Label Studio, with what the model answered as a prediction to start from.

    As its documentation has the import of pre-annotated tasks: https://labelstud.io/guide/predictions
    """
    task: dict[str, Any] = {
        "data": {
            **row.inputs,
            "id": row.id,
            "input_hash": row.input_hash,
            "inclusion_probability": row.inclusion_probability,
            "weight": row.weight,
            "predicted": row.prediction,
        }
    }
    label = row.prediction.get("label")
    if label is not None and row.inputs:
        prediction: dict[str, Any] = {
            "model_version": f"{row.model}/{row.version}",
            "result": [
                {
                    "from_name": "label",
                    "to_name": next(iter(row.inputs)),
                    "type": "choices",
                    "value": {"choices": [str(label)]},
                }
            ],
        }
        if isinstance(row.prediction.get("confidence"), float):
            prediction["score"] = row.prediction["confidence"]
        task["predictions"] = [prediction]
    return task

"""Parameters that several commands share, each named and explained once."""

from pathlib import Path
from typing import Annotated

import typer

from mlx_platform.core.errors import UsageError

RefArgument = Annotated[
    str,
    typer.Argument(
        metavar="REF",
        help="NAME@ALIAS, NAME@ALIAS~1 (the holder before), NAME/12, a label, or the path of a model.",
    ),
]
RegisteredArgument = Annotated[
    str,
    typer.Argument(
        metavar="REF",
        help="NAME@ALIAS, NAME@ALIAS~1 (the holder before), NAME/12, or a label.",
    ),
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Model name.")]
ModelArgument = Annotated[
    str, typer.Argument(metavar="NAME[@ALIAS]", help="Model name, with one of its aliases or alone.")
]
LabelOption = Annotated[
    str | None,
    typer.Option("--label", metavar="COLUMN", help="Column with the right answers; default: label."),
]
ReportOption = Annotated[
    Path | None,
    typer.Option("--report", metavar="DIR", help="Folder for report.html, report.json and junit.xml."),
]
JunitOption = Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="File for JUnit XML.")]
TrafficOption = Annotated[
    Path,
    typer.Option("--traffic", metavar="DIR", help="Traffic log, or a plain Parquet, CSV or JSONL file."),
]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Start: a time with zone, or an age such as 24h."),
]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help="End, exclusive.")]
LogFormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="Whose log it is, where that does not show: mlx, sagemaker, kserve, databricks, openinference "
        "or triton.",
    ),
]
ZoneOption = Annotated[
    str | None,
    typer.Option("--assume-tz", metavar="ZONE", help="Zone of the log's times that name none, such as UTC."),
]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the history.")]
DeviceOption = Annotated[
    str, typer.Option("--device", help="auto, cuda, tensorrt, cpu, or a GPU by its number: cuda:1.")
]


def pairs(words: list[str] | None, flag: str) -> dict[str, str]:
    """Read repeated `key=value` options.

    Raises:
        UsageError: a word without `=`, with an empty key, or with a key that was there before.
    """
    found: dict[str, str] = {}
    for word in words or []:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{flag} takes key=value, not {word!r}.")
        if key.strip() in found:
            raise UsageError(f"{flag} names {key.strip()!r} twice.", hint="Keep one of its values.")
        found[key.strip()] = value
    return found


def numbers(words: list[str] | None, flag: str) -> dict[str, float]:
    """Read repeated `key=number` options; NaN and infinity are no measurements.

    Raises:
        UsageError: a value that is no finite number.
    """
    found: dict[str, float] = {}
    for key, text in pairs(words, flag).items():
        try:
            value = float(text)
        except ValueError as error:
            raise UsageError(f"{flag} {key}={text}: {text!r} is no number.") from error
        if not abs(value) < float("inf"):
            raise UsageError(f"{flag} {key}={text}: only finite numbers are recorded.")
        found[key] = value
    return found

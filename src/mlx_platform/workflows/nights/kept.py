"""The nights that were looked at: a folder for each, which is there as a whole or not at all.

<report>/nights/2026-03-08/   report.html, report.json, junit.xml, night.json
"""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from mlx_platform.core.clock import rfc3339
from mlx_platform.core.errors import UsageError
from mlx_platform.core.files import staged_folder, write_atomic
from mlx_platform.core.report import Result
from mlx_platform.core.text import printable
from mlx_platform.core.values import frozen
from mlx_platform.core.verdict import Verdict
from mlx_platform.workflows.reports.html import html_page
from mlx_platform.workflows.reports.junit import junit_xml

SCHEMA = "mlx.night/v1"
FOLDER = "nights"
_FILE = "night.json"
_LARGEST = 1 << 20  # bytes


@frozen
class KeptNight:
    """What later nights want to know of an earlier one.

    `agreement` is None when no request could be compared; `clusters` say by key when mismatches of their kind
    were first seen.
    """

    key: str
    model: str
    ref: str
    since: datetime
    until: datetime
    verdict: Verdict
    compared: int
    agreeing: int
    agreement: float | None
    lower: float | None
    clusters: Mapping[str, datetime]

    def document(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "night": self.key,
            "model": self.model,
            "ref": self.ref,
            "since": rfc3339(self.since),
            "until": rfc3339(self.until),
            "verdict": str(self.verdict),
            "compared": self.compared,
            "agreeing": self.agreeing,
            "agreement": self.agreement,
            "lower": self.lower,
            "clusters": {key: rfc3339(first) for key, first in self.clusters.items()},
        }


def keep_night(report: Path, night: KeptNight, result: Result) -> None:
    """Put a night's report into its folder, in place of an earlier one about the same window.

    Raises:
        UsageError: the folder cannot be written or the disk is full.
    """
    with staged_folder(report / FOLDER / night.key) as folder:
        write_atomic(folder / "report.html", html_page(result))
        write_atomic(folder / "junit.xml", junit_xml(result))
        write_atomic(folder / "report.json", orjson.dumps(result.document(), option=orjson.OPT_INDENT_2))
        write_atomic(folder / _FILE, orjson.dumps(night.document(), option=orjson.OPT_INDENT_2))


def kept_nights(report: Path, model: str) -> tuple[list[KeptNight], list[str]]:
    """The nights of a report folder, oldest first, and warnings about those that cannot be read.

    Raises:
        UsageError: the folder holds the nights of another model.
    """
    found, warnings = [], []
    for path in sorted((report / FOLDER).glob(f"[!.]*/{_FILE}")):
        night = _read(path)
        if night is None:
            warnings.append(f"{path} is no account of a night, and is left out.")
        elif night.model != model:
            raise UsageError(
                f"{report} holds the nights of {printable(night.model, 130)}, not of {model}.",
                hint="Give each model a report folder of its own.",
            )
        else:
            found.append(night)
    return sorted(found, key=lambda night: night.until), warnings


def _read(path: Path) -> KeptNight | None:
    try:
        if path.stat().st_size > _LARGEST:
            return None
        document = orjson.loads(path.read_bytes())
        clusters = {str(key): datetime.fromisoformat(first) for key, first in document["clusters"].items()}
        return KeptNight(
            key=path.parent.name,
            model=str(document["model"]),
            ref=str(document["ref"]),
            since=datetime.fromisoformat(document["since"]),
            until=datetime.fromisoformat(document["until"]),
            verdict=Verdict(document["verdict"]),
            compared=int(document["compared"]),
            agreeing=int(document["agreeing"]),
            agreement=_share(document["agreement"]),
            lower=_share(document["lower"]),
            clusters=clusters,
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _share(value: Any) -> float | None:
    return None if value is None else float(value)

"""Three days of traffic whose truth is known, and an offline evaluation to compare with."""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from answered import answered_each, write_log
from colour_project import DAY, ColourProject, copy_colours, evaluation
from linear_models import LABELS, colours

from mlx_platform.core.statistics import wilson


@pytest.fixture
def project(colour_template: Path, tmp_path: Path) -> ColourProject:
    found = copy_colours(colour_template, tmp_path / "project")
    found.now = DAY + timedelta(days=3, hours=2)
    return found


@pytest.fixture
def served(project: ColourProject) -> Callable[..., dict[str, str]]:
    """Write requests of several days that `ref` answered; their truth by id, which is mostly the answer."""

    def write(
        ref: str = "colours/1",
        requests: int = 3000,
        *,
        right: float = 0.9,
        since: datetime = DAY,
        days: int = 3,
        first: int = 0,
        **more: Any,
    ) -> dict[str, str]:
        model = project.model(ref)
        features, _codes = colours(requests, seed=first)
        generator = np.random.default_rng(first)
        times = [since + number * timedelta(days=days) / requests for number in range(requests)]
        truth = {}
        for number, answer in enumerate(features.argmax(axis=1).tolist()):
            wrong = generator.random() >= right
            truth[f"r-{first + number}"] = LABELS[(answer + 1) % 3 if wrong else answer]
        records = answered_each(model, features, times, first, **more)
        write_log(project.folder / "traffic", records)
        return truth

    return write


@pytest.fixture
def offline(project: ColourProject) -> Callable[..., None]:
    """Keep an offline evaluation with a version."""

    def keep(ref: str = "colours/1", *, accuracy: float = 0.9, rows: int = 20_000) -> None:
        version = project.context.catalog.resolve(ref)
        interval = wilson(accuracy * rows, rows)
        numbers = {"accuracy": {"value": accuracy, "lower": interval.lower, "upper": interval.upper}}
        project.context.catalog.summarize(version, evaluation(version, numbers))

    return keep


@pytest.fixture
def csv(project: ColourProject) -> Callable[..., Path]:
    """Write labels as CSV, with further columns of one value per label."""

    def write(truth: dict[str, str], **columns: Any) -> Path:
        path = project.folder / "labels.csv"
        head = ",".join(("id", "label", *columns))
        cells = [list(column) for column in columns.values()]
        lines = [
            ",".join((request_id, label, *(str(column[place]) for column in cells)))
            for place, (request_id, label) in enumerate(truth.items())
        ]
        path.write_text("\n".join((head, *lines)) + "\n")
        return path

    return write

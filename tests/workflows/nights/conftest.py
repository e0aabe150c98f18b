"""A day of traffic in which production moved."""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from answered import answered, write_log
from colour_project import DAY, ColourProject, copy_colours
from linear_models import colours

from mlx_platform.traffic.record import Record


@pytest.fixture
def project(colour_template: Path, tmp_path: Path) -> ColourProject:
    return copy_colours(colour_template, tmp_path / "project")


@pytest.fixture
def traffic(project: ColourProject) -> Callable[..., Path]:
    """Write a day of requests, evenly spread, that `ref` answered; `change` alters those that it takes."""

    def write(
        ref: str,
        requests: int = 400,
        *,
        since: datetime = DAY,
        until: datetime = DAY + timedelta(days=1),
        change: Callable[[Record], Record | None] | None = None,
        first: int = 0,
        **more: Any,
    ) -> Path:
        model = project.model(ref)
        features, _codes = colours(requests, seed=first)
        step = (until - since) / requests
        records = [
            answered(model, features[number : number + 1], first + number, since + number * step, **more)
            for number in range(requests)
        ]
        return write_log(
            project.folder / "traffic",
            [(change(record) or record) if change else record for record in records],
        )

    return write

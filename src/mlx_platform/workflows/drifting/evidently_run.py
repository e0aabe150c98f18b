"""Evidently's own report of two files of rows, made in a process of its own.

    python -m mlx_platform.workflows.drifting.evidently_run BASELINE WINDOW PAGE.html SCORES.json

It takes seconds to import, and changes what a process that imports it does with warnings.
"""

import json
import sys
from pathlib import Path


def main(baseline: str, window: str, page: str, scores: str) -> None:
    """Write the page, and PSI by column."""
    import pandas as pd
    from evidently import Report
    from evidently.presets import DataDriftPreset

    report = Report([DataDriftPreset(method="psi")])
    snapshot = report.run(pd.read_parquet(window), pd.read_parquet(baseline))
    snapshot.save_html(page)
    found = {
        metric["config"]["column"]: metric["value"]
        for metric in snapshot.dict()["metrics"]
        if "column" in metric.get("config", {})
    }
    Path(scores).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The false alarm to avoid: years of a census, where some changes are significant and none is large."""

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from mlx_platform.core.settings import DriftSettings
from mlx_platform.core.verdict import Verdict
from mlx_platform.drift.counts import count
from mlx_platform.drift.profile import build_profile
from mlx_platform.drift.verdict import compare, overall
from mlx_platform.workflows.drifting.parquet import as_column

FETCH = Path(__file__).parents[2] / "examples" / "fetch.py"
FILES = [f"nannyml/datasets/data/employment_MA_{part}.pq" for part in ("reference", "analysis")]
ASIDE = ["id", "employed", "year"]


def test_the_years_of_a_census_do_not_alarm():
    done = subprocess.run(
        [sys.executable, FETCH, "nannyml==0.13.1", *FILES], capture_output=True, text=True, check=True
    )
    first, later = (pq.read_table(Path(done.stdout.strip()) / file) for file in FILES)
    names = [name for name in first.column_names if name not in ASIDE]
    profile = build_profile({name: as_column(first.column(name)) for name in names})

    for year in (2016, 2017, 2018):
        rows = later.filter([int(each) == year for each in later.column("year").to_pylist()])
        counts = count(profile, {name: as_column(rows.column(name)) for name in names})
        found = compare(profile, counts, DriftSettings())

        assert overall(found, DriftSettings(), fail_on="warn") is Verdict.PASS
        assert any(feature.significant for feature in found)

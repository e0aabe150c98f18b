"""Where our numbers and Evidently's agree, and when its limit on pandas can go."""

import json
import subprocess
import sys
from importlib.metadata import version

import numpy as np
import pytest

from mlx_platform.core.tensors import text_column
from mlx_platform.drift import scores
from mlx_platform.drift.counts import count
from mlx_platform.drift.profile import build_profile
from mlx_platform.drift.table import tabulate

# In a process of its own: it takes seconds to import, and warns about its own use of NumPy and Pydantic.
SCRIPT = """
import json
import pandas
from evidently.legacy.calculations.stattests import kl_div_stat_test, psi_stat_test
baseline = pandas.Series(["a"] * 50 + ["b"] * 30 + ["c"] * 20)
window = pandas.Series(["a"] * 40 + ["b"] * 35 + ["c"] * 25)
found = [
    float(test(baseline, window, "cat", 0.1).drift_score) for test in (psi_stat_test, kl_div_stat_test)
]
print(json.dumps(found))
"""


def test_raw_scores_of_categories_on_both_sides_are_evidentlys() -> None:
    baseline = text_column(["a"] * 50 + ["b"] * 30 + ["c"] * 20)
    window = text_column(["a"] * 40 + ["b"] * 35 + ["c"] * 25)
    profile = build_profile({"x": baseline})
    table = tabulate(profile.features[0], count(profile, {"x": window}).tallies[0])
    p, q = scores.shares(table.baseline, table.window, 0)

    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )

    theirs = json.loads(process.stdout.splitlines()[-1])
    assert theirs == pytest.approx([scores.psi(p, q), scores.kl(p, q)], abs=1e-6)
    assert theirs == pytest.approx([0.041179, 0.020698], abs=1e-6)


def test_ours_does_not_depend_on_an_outlier_or_on_the_size_of_the_sample() -> None:
    # Two known differences: equal-width bins over both sides give one outlier all the resolution, and let
    # the score of the same change fall as rows are added.
    generator = np.random.default_rng(0)
    baseline = generator.normal(size=20_000)
    window = generator.normal(1.0, size=20_000)
    profile = build_profile({"x": baseline})

    def psi(column: np.ndarray) -> float:
        table = tabulate(profile.features[0], count(profile, {"x": column}).tallies[0])
        return scores.psi(*scores.shares(table.baseline, table.window))

    assert psi(np.r_[window, 1e6]) == pytest.approx(psi(window), abs=1e-3)
    assert psi(window[:2000]) == pytest.approx(psi(window), rel=0.2)


def test_the_limit_on_pandas_stands_for_this_release_of_evidently() -> None:
    assert version("evidently") == "0.7.23", (
        "Evidently has changed. Check whether it imports with pandas 3.1 or later; if it does, remove the "
        "upper limit of pandas from pyproject.toml, else name the new release here."
    )

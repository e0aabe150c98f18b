import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import DriftSettings, Settings
from mlx_platform.core.tensors import text_column
from mlx_platform.core.verdict import Verdict
from mlx_platform.drift.counts import count
from mlx_platform.drift.model_monitor import is_constraints, is_statistics, profile_of_statistics
from mlx_platform.drift.profile import Profile, build_profile
from mlx_platform.drift.verdict import FeatureDrift, compare
from mlx_platform.workflows.context import make_context
from mlx_platform.workflows.drift import measure_drift

ROWS = 64_000
RATE = np.random.default_rng(7).lognormal(0, 1, ROWS)
VISITS = np.random.default_rng(8).poisson(900, ROWS)
PLANS = {"free": 40_000, "team": 20_000, "firm": 3_000}


def sketch(values: np.ndarray, level: int) -> dict[str, Any]:
    """What a sketch keeps after `level` rounds of halving: every 2^level-th value in order."""
    kept = np.sort(values)[2 ** (level - 1) :: 2**level].astype(float).tolist()
    return {"parameters": {"c": 0.64, "k": 2048.0}, "data": [[] for _ in range(level)] + [kept]}


def numeric(name: str, values: np.ndarray, *, level: int | None = 6, missing: int = 0) -> dict[str, Any]:
    edges = np.linspace(values.min(), values.max(), 11)
    counts = np.histogram(values, edges)[0]
    buckets = [
        {"lower_bound": float(low), "upper_bound": float(high), "count": float(count)}
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    distribution = {"buckets": buckets} | ({} if level is None else {"sketch": sketch(values, level)})
    return {
        "name": name,
        "inferred_type": "Integral" if values.dtype.kind == "i" else "Fractional",
        "numerical_statistics": {
            "common": {"num_present": len(values), "num_missing": missing},
            "mean": float(values.mean()),
            "std_dev": float(values.std()),
            "min": float(values.min()),
            "max": float(values.max()),
            "distribution": {"kll": distribution},
        },
    }


def text(name: str, counts: dict[str, int], present: int) -> dict[str, Any]:
    buckets = [{"value": value, "count": count} for value, count in counts.items()]
    return {
        "name": name,
        "inferred_type": "String",
        "string_statistics": {
            "common": {"num_present": present, "num_missing": ROWS - present},
            "distinct_count": 5,
            "distribution": {"categorical": {"buckets": buckets}},
        },
    }


def statistics(*features: dict[str, Any]) -> dict[str, Any]:
    return {"version": 0.0, "dataset": {"item_count": ROWS}, "features": list(features)}


def drift_of(profile: Profile, **columns: np.ndarray) -> FeatureDrift:
    (found,) = compare(profile, count(profile, columns), DriftSettings(), roles=("input",))
    return found


@pytest.mark.parametrize("shift", [0.0, 0.15, 0.5])
def test_a_sketch_scores_as_the_rows_do_that_it_was_made_of(shift: float) -> None:
    window = np.random.default_rng(9).lognormal(shift, 1, 20_000)
    exact = drift_of(build_profile({"rate": RATE}), rate=window)
    found = drift_of(profile_of_statistics(statistics(numeric("rate", RATE))), rate=window)
    assert found.level is exact.level
    assert found.psi == pytest.approx(exact.psi, rel=0.03, abs=0.0005)


def test_whole_numbers_stay_whole_and_missing_ones_are_counted() -> None:
    profile = profile_of_statistics(statistics(numeric("visits", VISITS, missing=640)))
    (feature,) = profile.features
    assert feature.dtype == "int64"
    assert feature.tally.missing.null == 640
    assert (feature.tally.minimum, feature.tally.maximum) == (VISITS.min(), VISITS.max())
    assert feature.tally.present == pytest.approx(ROWS, abs=2)


def test_without_the_sketch_the_bins_are_the_files_own_buckets() -> None:
    profile = profile_of_statistics(statistics(numeric("visits", VISITS, level=None)))
    (feature,) = profile.features
    edges = np.linspace(VISITS.min(), VISITS.max(), 11)
    assert feature.tally.bins.sum() == ROWS
    same = count(profile, {"visits": VISITS}).tallies[0]
    assert same.bins.tolist() == feature.tally.bins.tolist()
    assert set(np.nextafter(feature.edges, np.inf).tolist()) <= set(edges.tolist())


def test_more_rows_than_are_laid_out_keep_their_number() -> None:
    entry = numeric("rate", RATE)
    many = 640_000_000
    entry["numerical_statistics"]["common"]["num_present"] = many
    kept = entry["numerical_statistics"]["distribution"]["kll"]["sketch"]
    kept["data"] = [[]] * 16 + [np.sort(RATE)[3::6].tolist()[:9766]]
    (feature,) = profile_of_statistics(statistics(entry)).features
    assert feature.tally.present == pytest.approx(many, rel=0.001)


def test_texts_keep_their_counts_and_those_without_a_name_are_together() -> None:
    profile = profile_of_statistics(statistics(text("plan", PLANS, 63_900)))
    (feature,) = profile.features
    assert dict(zip(feature.categories, feature.tally.bins.tolist(), strict=True)) == PLANS
    assert (feature.tally.other, feature.tally.missing.null) == (900, 100)
    window = text_column(["free"] * 100 + ["firm"] * 900)
    assert drift_of(profile, plan=window).psi > 1


def test_a_feature_without_any_distribution_is_empty_and_costs_no_other() -> None:
    bare = numeric("rate", RATE)
    del bare["numerical_statistics"]["distribution"]
    odd = {"name": "odd", "inferred_type": "Unknown"}
    profile = profile_of_statistics(statistics(bare, odd, text("plan", PLANS, 63_900)))
    assert [feature.kind for feature in profile.features] == ["empty", "empty", "categorical"]
    assert Profile.from_json(profile.to_json()) is not None


def test_mlx_drift_takes_such_a_file_and_refuses_constraints(tmp_path: Path) -> None:
    baseline = tmp_path / "statistics.json"
    baseline.write_text(json.dumps(statistics(numeric("rate", RATE), text("plan", PLANS, 63_900))))
    rules = {"version": 0.0, "features": [], "monitoring_config": {"evaluate_constraints": "Enabled"}}
    (tmp_path / "constraints.json").write_text(json.dumps(rules))
    plans = np.random.default_rng(1).choice(list(PLANS), 3000, p=np.array([*PLANS.values()]) / 63_000)
    rates = np.random.default_rng(2).lognormal(0, 1, 3000)
    pq.write_table(pa.table({"rate": rates * 3, "plan": plans}), tmp_path / "today.parquet")
    context = make_context(Settings(folder=tmp_path))
    found = measure_drift(context, baseline=baseline, traffic=tmp_path / "today.parquet")
    assert found.verdict is Verdict.FAIL
    assert [feature["verdict"] for feature in found.data["features"]] == ["drift", "ok"]
    with pytest.raises(UsageError, match="no distribution"):
        measure_drift(context, baseline=tmp_path / "constraints.json", traffic=tmp_path / "today.parquet")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=100)
@given(value=JSON_VALUES, at=st.integers(0, 400))
def test_no_statistics_end_in_anything_but_our_error(value: Any, at: int) -> None:
    document = statistics(numeric("rate", RATE[:64], level=2), text("plan", PLANS, 63_900))
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(min(len(node), 2)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(document)
    node, key = places[at % len(places)]
    node[key] = value
    if not is_statistics(document):
        assert not is_constraints(document)
        return
    try:
        profile = profile_of_statistics(document)
    except UsageError:
        return
    assert Profile.from_json(profile.to_json()).baseline_id == profile.baseline_id

"""What the rule says: on vectors from raw columns, on simulations, and on features that are broken."""

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import DriftSettings, FeatureSettings
from mlx_platform.core.tensors import Array, text_column
from mlx_platform.core.verdict import Verdict
from mlx_platform.drift.counts import Counts, count
from mlx_platform.drift.profile import build_profile
from mlx_platform.drift.verdict import FeatureDrift, Level, compare, level_counts, overall

SETTINGS = DriftSettings()
VECTORS = {
    vector["id"]: vector["smoothed"]
    for vector in json.loads(Path(__file__).with_name("vectors.json").read_text())
}
NAN = np.nan
Draw = Callable[[np.random.Generator, int], Array]


def judge(baseline: Array, window: Array) -> FeatureDrift:
    profile = build_profile({"x": baseline})
    return compare(profile, count(profile, {"x": window}), SETTINGS)[0]


def levels(draw: Draw, moved: Draw, rows: tuple[int, int], runs: int) -> Counter[Level]:
    generator = np.random.default_rng(11)
    return Counter(judge(draw(generator, rows[0]), moved(generator, rows[1])).level for _ in range(runs))


def normal(mean: float = 0.0) -> Draw:
    return lambda generator, rows: generator.normal(mean, size=rows)


def zipf(categories: int) -> Draw:
    weights = 1 / np.arange(1, categories + 1)
    names = text_column([f"c{index}" for index in range(categories)])
    return lambda generator, rows: names[generator.choice(categories, rows, p=weights / weights.sum())]


def words(**counts: int) -> Array:
    return text_column([word for word, times in counts.items() for _ in range(times)])


def values(*pairs: tuple[float, int]) -> Array:
    return np.concatenate([np.full(times, value) for value, times in pairs])


TENTHS = np.tile(np.arange(1.0, 101.0), 10)
BLOCKS = np.arange(990.0)  # without the multiples of eleven, each tenth holds 90 instead of 99


@pytest.mark.parametrize(
    ("vector", "baseline", "window"),
    [
        ("V1", words(a=50, b=30, c=20), words(a=40, b=35, c=25)),
        ("V2", words(a=50, b=30, c=20), words(a=500, b=300, c=200)),
        ("V4", np.arange(1.0, 101.0), np.arange(11.0, 111.0)),
        ("V5", np.r_[BLOCKS, [NAN] * 10], np.r_[BLOCKS[BLOCKS % 11 > 0], [NAN] * 100]),
        ("V6", words(a=50, b=50), words(a=50, b=40, z=10)),
        ("V7", values((5, 1000)), values((5, 900), (7, 100))),
        ("V8", values((5, 1000)), values((5, 500))),
        ("V10", values((5, 1000)), values((7, 1000))),
        ("V11", values((0, 700), (1, 200), (2, 80), (3, 20)), values((0, 600), (1, 250), (2, 100), (3, 50))),
        ("V14", TENTHS, np.full(1000, NAN)),
        ("V15", np.tile(TENTHS, 5), np.r_[np.tile(TENTHS, 2), [NAN] * 3000]),
    ],
)
def test_raw_columns_score_as_the_vectors_say(vector: str, baseline: Array, window: Array) -> None:
    found = judge(baseline, window).scores

    assert found is not None
    names = ("psi", "kl", "kl_reverse", "js_distance")
    assert {name: getattr(found, name) for name in names} == pytest.approx(VECTORS[vector], abs=6e-7)


@pytest.mark.parametrize(
    ("baseline", "window", "level"),
    [
        (TENTHS, TENTHS, Level.OK),
        (TENTHS, np.full(1000, NAN), Level.DRIFT),
        (np.full(1000, NAN), np.full(1000, NAN), Level.OK),
        (np.full(1000, NAN), TENTHS, Level.DRIFT),
        (np.tile(TENTHS, 5), np.r_[np.tile(TENTHS, 2), [NAN] * 3000], Level.DRIFT),
        (values((5, 1000)), values((5, 1000)), Level.OK),
        (values((5, 1000)), values((5, 3)), Level.INSUFFICIENT),
        (values((5, 1000)), values((7, 1000)), Level.DRIFT),
        (TENTHS, np.r_[TENTHS[:900], [np.inf] * 100], Level.OK),
        (TENTHS, np.r_[TENTHS[:500], [-np.inf] * 500], Level.DRIFT),
        (words(a=500, b=500), words(c=1000), Level.DRIFT),
        (TENTHS, np.full(8, 99.5), Level.DRIFT),
        (words(a=500, b=400, c=100), words(z=8), Level.DRIFT),
        (TENTHS, TENTHS[::125], Level.INSUFFICIENT),
        (words(a=500, b=500), words(a=2, b=2), Level.INSUFFICIENT),
        (TENTHS, np.full(8, NAN), Level.DRIFT),
    ],
)
def test_every_kind_of_window_has_a_defined_answer(baseline: Array, window: Array, level: Level) -> None:
    found = judge(baseline, window)

    assert found.level is level
    assert found.significant or level is not Level.DRIFT


def test_unique_texts_cannot_be_compared_and_are_no_pass() -> None:
    one, other = (text_column([f"{side}{index}" for index in range(2000)]) for side in "ab")

    assert judge(one, other).level is Level.INSUFFICIENT


def test_a_tiny_change_over_many_rows_is_significant_and_ok() -> None:
    many = np.tile(TENTHS, 200)

    found = judge(many, np.r_[many, np.full(2000, 5.0)])

    assert (found.level, found.significant) == (Level.OK, True)
    assert found.p_value is not None
    assert found.p_value < 1e-6


@pytest.mark.parametrize("rows", [(100, 100), (300, 300), (5000, 300), (1000, 8), (1000, 40)])
def test_numbers_that_have_not_moved_do_not_alarm(rows: tuple[int, int]) -> None:
    found = levels(normal(), normal(), rows, 60)

    assert found[Level.DRIFT] + found[Level.WARN] <= 1
    assert found[Level.INSUFFICIENT] == (0 if min(rows) >= 50 else 60)


@pytest.mark.parametrize(("categories", "rows"), [(1000, 10_000), (200, 1000), (50, 500)])
def test_rare_categories_do_not_cry_wolf(categories: int, rows: int) -> None:
    found = levels(zipf(categories), zipf(categories), (rows, rows), 12)

    assert found == {Level.OK: 12}


@pytest.mark.parametrize(
    ("mean", "rows", "level", "least"),
    [
        (0.6, (1000, 1000), Level.DRIFT, 1.0),
        (0.35, (10_000, 10_000), Level.WARN, 0.85),
        (5.0, (1000, 8), Level.DRIFT, 1.0),
        (5.0, (1000, 3), Level.DRIFT, 0.9),
        (1.0, (1000, 40), Level.DRIFT, 0.85),
    ],
)
def test_a_real_shift_is_found(mean: float, rows: tuple[int, int], level: Level, least: float) -> None:
    runs = 30

    assert levels(normal(), normal(mean), rows, runs)[level] >= least * runs


def test_many_missing_rows_do_not_hide_what_happens_to_the_others() -> None:
    generator = np.random.default_rng(4)
    gaps = np.full(9000, NAN)

    found = judge(np.r_[generator.normal(size=1000), gaps], np.r_[generator.normal(1.0, size=1000), gaps])

    assert found.level is Level.DRIFT
    assert found.scores is not None
    assert found.scores.psi < 0.2 < found.scores.psi_present
    assert found.scores.psi_missing == pytest.approx(0)


def test_one_broken_feature_stops_no_other() -> None:
    rows = 500
    good = np.random.default_rng(0).normal(size=rows)
    profile = build_profile({"gone": good, "text": good, "matrix": np.zeros((rows, 2)), "good": good})

    found = compare(
        profile,
        count(
            profile,
            {"text": text_column(["x"] * rows), "matrix": np.zeros((rows, 2)), "good": good},
        ),
        SETTINGS,
    )

    assert [each.level for each in found] == [Level.ERROR, Level.ERROR, Level.ERROR, Level.OK]
    assert [each.message for each in found] == [
        "The window has no such column.",
        "The window holds values of another type than the baseline's float64.",
        "The baseline holds no values that can be counted.",
        "",
    ]
    assert all(each.scores is None for each in found[:3])


def test_significance_is_corrected_for_the_number_of_features() -> None:
    generator = np.random.default_rng(0)
    rows = 400
    still = {f"f{index}": generator.normal(size=rows) for index in range(300)}
    profile = build_profile(still)

    found = compare(profile, count(profile, {name: generator.normal(size=rows) for name in still}), SETTINGS)

    smallest = min(each.p_value or 0.0 for each in found)
    assert smallest < 0.01  # chance alone, among three hundred
    assert level_counts(found)["drift"] + level_counts(found)["warn"] == 0


def test_a_result_names_new_and_gone_categories_and_its_worst_bins() -> None:
    found = judge(words(a=600, b=400), words(a=500, new=500))

    assert found.new_categories == (("new", 500),)
    assert found.gone_categories == (("b", 400),)
    assert found.scores is not None
    parts = {part.label: (part.baseline, part.window) for part in found.scores.contributions}
    assert parts == {"a": (0.6, 0.5), "b": (0.4, 0.0), "new": (0.0, 0.5)}
    assert sum(part.psi for part in found.scores.contributions) == pytest.approx(found.psi)


def test_distances_in_units_of_the_baselines_spread() -> None:
    column = np.random.default_rng(6).normal(10, 3, size=20_000)

    found = judge(column, column + 3).scores

    assert found is not None
    assert found.wasserstein == pytest.approx(1.0, abs=0.06)
    assert found.ks == pytest.approx(0.383, abs=0.02)


def test_one_outlier_does_not_own_the_distance() -> None:
    column = np.random.default_rng(6).normal(size=5000)

    found = judge(column, np.r_[column[:-1], 1e9]).scores

    assert found is not None
    assert found.psi < 0.001
    assert found.wasserstein is not None
    assert found.wasserstein < 1e9 / 5000  # that of the outlier alone


def test_the_document_is_finite_json_whatever_happened() -> None:
    profile = build_profile({"gone": TENTHS, "x": TENTHS, "id": text_column([str(i) for i in range(1000)])})
    window = {"x": np.r_[TENTHS, np.inf], "id": text_column([f"n{i}" for i in range(1001)])}

    for each in compare(profile, count(profile, window), SETTINGS):
        text = json.dumps(each.document(), allow_nan=False)
        assert json.loads(text)["name"] == each.name
    assert math.isnan(compare(profile, count(profile, window), SETTINGS)[0].psi)


def with_levels(*chosen: Level) -> Sequence[FeatureDrift]:
    return [
        FeatureDrift(f"f{index}", "input", "numeric", level, (9, 9), (0.0, 0.0))
        for index, level in enumerate(chosen)
    ]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ((Level.OK, Level.OK), Verdict.PASS),
        ((Level.OK, Level.WARN), Verdict.PASS),
        ((Level.OK, Level.INSUFFICIENT), Verdict.UNDECIDED),
        ((Level.DRIFT, Level.INSUFFICIENT), Verdict.FAIL),
        ((Level.INSUFFICIENT, Level.INSUFFICIENT), Verdict.UNDECIDED),
        ((), Verdict.UNDECIDED),
        ((Level.OK, Level.ERROR), Verdict.ERROR),
        ((Level.INSUFFICIENT, Level.ERROR), Verdict.ERROR),
        ((Level.DRIFT, Level.ERROR, Level.OK), Verdict.FAIL),
    ],
)
def test_the_window_has_the_verdict_of_its_features(chosen: tuple[Level, ...], expected: Verdict) -> None:
    assert overall(with_levels(*chosen), SETTINGS) is expected


def test_warnings_fail_only_when_asked_to() -> None:
    found = with_levels(Level.OK, Level.WARN)

    assert overall(found, SETTINGS, fail_on="warn") is Verdict.FAIL
    assert overall(found, SETTINGS, fail_on="drift") is Verdict.PASS


def test_a_share_of_features_must_drift_when_the_policy_says_so() -> None:
    policy = DriftSettings(policy="share", share=0.5)

    assert overall(with_levels(Level.DRIFT, Level.OK, Level.OK), policy) is Verdict.PASS
    assert overall(with_levels(Level.DRIFT, Level.DRIFT, Level.OK), policy) is Verdict.FAIL


def test_counts_of_another_baseline_are_refused() -> None:
    profile, other = build_profile({"x": TENTHS}), build_profile({"x": TENTHS + 1})

    with pytest.raises(UsageError):
        compare(profile, Counts.nothing(other), SETTINGS)


def test_a_share_passes_only_when_the_undecided_features_could_not_change_it() -> None:
    policy = DriftSettings(policy="share", share=0.5)

    one_open = with_levels(Level.OK, Level.OK, Level.OK, Level.INSUFFICIENT)
    two_open = with_levels(Level.OK, Level.OK, Level.INSUFFICIENT, Level.INSUFFICIENT)

    assert overall(one_open, policy) is Verdict.PASS
    assert overall(two_open, policy) is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"f0": 7.0}, Verdict.FAIL),
        ({"f0": 0.5}, Verdict.PASS),
        ({"f0": 2.0, "f1": 1.0, "f2": 1.0}, Verdict.FAIL),
        ({"f0": 1.0, "f1": 0.5, "f2": 0.4999}, Verdict.FAIL),
        ({"f0": 0.0}, Verdict.PASS),
        ({"f0": 0.0, "f1": 0.0, "f2": 0.0}, Verdict.UNDECIDED),
    ],
)
def test_features_count_by_their_weight_when_the_policy_says_so(
    weights: dict[str, float], expected: Verdict
) -> None:
    special = {name: FeatureSettings(weight=weight) for name, weight in weights.items()}
    policy = DriftSettings(policy="weighted", share=0.5, features=special)

    assert overall(with_levels(Level.DRIFT, Level.OK, Level.OK), policy) is expected


def test_weights_of_features_with_too_few_rows_leave_open_what_they_could_change() -> None:
    heavy = {"f1": FeatureSettings(weight=5.0)}
    policy = DriftSettings(policy="weighted", share=0.5, features=heavy)

    assert overall(with_levels(Level.OK, Level.INSUFFICIENT, Level.OK), policy) is Verdict.UNDECIDED
    assert overall(with_levels(Level.OK, Level.OK, Level.INSUFFICIENT), policy) is Verdict.PASS


@pytest.mark.parametrize("policy", ["any", "share", "weighted"])
@pytest.mark.parametrize("level", [Level.DRIFT, Level.ERROR, Level.INSUFFICIENT])
def test_a_feature_of_weight_0_decides_nothing(policy: Any, level: Level) -> None:
    settings = DriftSettings(policy=policy, features={"f0": FeatureSettings(weight=0)})

    assert overall(with_levels(level, Level.OK), settings) is Verdict.PASS


def test_a_feature_may_have_limits_of_its_own() -> None:
    moved = TENTHS + 30
    special = {"x": FeatureSettings(warn=50.0, drift=60.0)}
    profile = build_profile({"x": TENTHS})

    usual, lenient = (
        compare(profile, count(profile, {"x": moved}), settings)[0]
        for settings in (SETTINGS, DriftSettings(features=special))
    )

    assert (usual.level, lenient.level) == (Level.DRIFT, Level.OK)
    assert lenient.significant

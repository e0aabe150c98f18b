"""Profiles: kinds follow from the baseline, and the bytes read back to the same profile."""

import numpy as np
import orjson
import pytest

from mlx_platform.core.errors import IntegrityError, UndecidedError, UsageError
from mlx_platform.core.tensors import text_column
from mlx_platform.drift.profile import CATEGORIES_KEPT, Profile, build_profile

GENERATOR = np.random.default_rng(3)
NORMAL = GENERATOR.normal(size=1000)


def test_the_kind_of_a_feature_follows_from_the_baseline() -> None:
    rows = 1000
    profile = build_profile(
        {
            "numeric": NORMAL,
            "discrete": np.arange(rows) % 17,
            "constant": np.full(rows, 5.0),
            "categorical": text_column(["a", "b"] * (rows // 2)),
            "flag": np.arange(rows) % 2 == 0,
            "empty": np.full(rows, np.nan),
            "nothing": text_column([None] * rows),
            "matrix": np.zeros((rows, 2)),
            "infinite": np.full(rows, np.inf),
            "mostly": np.where(np.arange(rows) < 950, 0.0, NORMAL),
        }
    )

    kinds = {feature.name: feature.kind for feature in profile.features}
    assert kinds == {
        "numeric": "numeric",
        "discrete": "discrete",
        "constant": "constant",
        "categorical": "categorical",
        "flag": "categorical",
        "empty": "empty",
        "nothing": "empty",
        "matrix": "empty",
        "infinite": "empty",
        "mostly": "discrete",
    }
    assert all(feature.tally.rows == rows for feature in profile.features)


def test_a_value_that_is_nearly_everything_is_told_from_those_below_and_above() -> None:
    column = np.concatenate([np.zeros(950), np.linspace(-1, 1, 50)])

    feature = build_profile({"x": column}).features[0]

    assert feature.values == (0,)
    assert feature.tally.bins.tolist() == [25, 950, 25]


def test_the_baseline_is_counted_with_its_missing_and_infinite_values() -> None:
    column = np.concatenate([NORMAL, [np.nan] * 3, [np.inf] * 2, [-np.inf]])

    tally = build_profile({"x": column}).features[0].tally

    assert (tally.rows, tally.present, tally.missing.nan) == (1006, 1003, 3)
    assert (tally.posinf, tally.neginf, tally.above, tally.below) == (2, 1, 2, 1)
    assert (tally.minimum, tally.maximum) == (NORMAL.min(), NORMAL.max())


def test_a_profile_reads_back_byte_for_byte() -> None:
    profile = build_profile(
        {"x": NORMAL, "s": text_column(["\x1b[31m", None] * 500), "big": 2**60 + np.arange(1000)},
        {"label": text_column(["yes", "no"] * 500), "confidence": NORMAL.astype(np.float32)},
        {"x": ("input", 4)},
    )

    again = Profile.from_json(profile.to_json())

    assert again.to_json() == profile.to_json()
    assert again.baseline_id == profile.baseline_id
    assert again.positions == {"x": ("input", 4)}
    assert again.features[2].edges.dtype == np.int64


def test_equal_baselines_have_equal_ids_and_others_do_not() -> None:
    shuffled = np.random.default_rng(1).permutation(NORMAL)

    first, same, other = (build_profile({"x": column}) for column in (NORMAL, shuffled, NORMAL + 1))

    assert first.baseline_id == same.baseline_id != other.baseline_id


def test_answers_are_reduced_to_what_is_watched() -> None:
    answers = {
        "label": text_column(["a"] * 4),
        "label_index": np.zeros(4, np.int64),
        "confidence": np.ones(4),
        "probabilities": np.ones((4, 2)) / 2,
    }

    profile = build_profile({"x": np.arange(4.0), "label": np.arange(4.0)}, answers)

    names = [(feature.role, feature.name, feature.column) for feature in profile.features]
    assert names == [
        ("input", "x", "x"),
        ("input", "label", "label"),
        ("output", "output.label", "label"),
        ("output", "confidence", "confidence"),
    ]


def test_more_categories_than_are_kept_leave_a_tail() -> None:
    cells = ["often"] * 10 + [f"c{index}" for index in range(CATEGORIES_KEPT + 500)]

    feature = build_profile({"s": text_column(cells)}).features[0]

    assert feature.categories[0] == "often"
    assert len(feature.categories) == CATEGORIES_KEPT
    assert feature.tally.other == 501
    assert feature.tally.rows == len(cells)


def test_no_rows_and_unequal_columns_are_refused() -> None:
    with pytest.raises(UndecidedError):
        build_profile({"x": np.empty(0)})
    with pytest.raises(UsageError):
        build_profile({"x": np.zeros(2), "y": np.zeros(3)})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"schema": "mlx.profile/v2"}',
        b'{"schema": "mlx.profile/v1", "features": [{}]}',
    ],
)
def test_what_is_no_profile_is_refused(content: bytes) -> None:
    with pytest.raises(UsageError):
        Profile.from_json(content)


def test_a_profile_that_was_changed_is_not_the_one_its_id_names() -> None:
    document = orjson.loads(build_profile({"x": NORMAL}).to_json())
    document["rows"] = 7

    with pytest.raises(IntegrityError):
        Profile.from_json(orjson.dumps(document))


@pytest.mark.parametrize(
    ("field", "value"),
    [("kind", "made up"), ("quantiles", [2, 1]), ("quantiles", ["1"]), ("tally", {"bins": [-1]})],
)
def test_a_profile_with_an_impossible_feature_is_refused(field: str, value: object) -> None:
    document = orjson.loads(build_profile({"x": NORMAL}).to_json())
    document["features"][0][field] = value

    with pytest.raises(UsageError):
        Profile.from_json(orjson.dumps(document))

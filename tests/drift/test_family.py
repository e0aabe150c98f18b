"""Many views of the same rows are one feature: they alarm together, and by chance no more often than one."""

import numpy as np
import pytest

from mlx_platform.core.settings import DriftSettings
from mlx_platform.drift.counts import count
from mlx_platform.drift.extract.vectors import watch_vectors
from mlx_platform.drift.family import family_of
from mlx_platform.drift.profile import build_profile
from mlx_platform.drift.verdict import Level, compare

SETTINGS = DriftSettings()


def vectors(seed, rows, shift=0.0, width=64, shared=0.0):
    generator = np.random.default_rng(seed)
    found = generator.standard_normal((rows, width)) + shared * generator.standard_normal((rows, 1))
    return (found + shift).astype(np.float32)


def judge(baseline, window):
    profile = build_profile(watch_vectors("v", baseline))
    return {
        found.name: found for found in compare(profile, count(profile, watch_vectors("v", window)), SETTINGS)
    }


def test_projections_are_one_feature_whose_score_is_their_mean():
    found = judge(vectors(0, 3000), vectors(1, 2000, shift=1.0))

    assert set(found) == {"v.norm", "v.projections"}
    family = found["v.projections"]
    assert family.level is Level.DRIFT
    assert len(family.scores.members) == 32
    assert family.psi == pytest.approx(np.mean([psi for _, psi in family.scores.members]))
    assert sum(part.psi for part in family.scores.contributions) == pytest.approx(family.psi)


@pytest.mark.parametrize("shared", [0.0, 3.0])  # independent projections, and such that nearly say the same
def test_without_drift_projections_are_significant_no_more_often_than_one_feature(shared):
    p_values = [
        judge(
            vectors(2 * seed, 500, width=16, shared=shared),
            vectors(2 * seed + 1, 500, width=16, shared=shared),
        )["v.projections"].p_value
        for seed in range(60)
    ]

    # Of 60 a chi-square p-value would have 3 below 0.05 on average; 9 or more in one of 300 tries.
    assert sum(p < 0.05 for p in p_values) < 9


def test_few_rows_are_no_pass():
    found = judge(vectors(0, 3000), vectors(1, 8))

    assert found["v.projections"].level is Level.INSUFFICIENT


def test_counts_of_vectors_do_not_depend_on_how_many_come_together():
    baseline, window = vectors(0, 400), vectors(1, 300)
    profile = build_profile(watch_vectors("v", baseline))
    whole = count(profile, watch_vectors("v", window))
    parts = [count(profile, watch_vectors("v", window[start : start + 7])) for start in range(0, 300, 7)]

    assert sum(parts[1:], parts[0]).document() == whole.document()


def test_only_views_that_were_made_here_are_taken_together():
    assert family_of("image.colours#red0") == "image.colours"
    assert family_of("row#1") == "row#1"

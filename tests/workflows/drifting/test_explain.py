import numpy as np
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.report import Table, Text
from mlx_platform.core.settings import DriftSettings
from mlx_platform.core.tensors import text_column
from mlx_platform.drift.counts import count
from mlx_platform.drift.profile import build_profile
from mlx_platform.drift.verdict import compare
from mlx_platform.workflows.drifting.explain import chosen, explanation, sections

SETTINGS = DriftSettings()
REPEATED = np.tile(np.arange(100.0), 5)


def judged(baseline, window):
    profile = build_profile(baseline)
    return compare(profile, count(profile, window), SETTINGS)


def words(**counts):
    return text_column([word for word, times in counts.items() for _ in range(times)])


def test_the_terms_of_the_bins_add_up_to_the_score():
    (feature,) = judged({"x": words(a=50, b=30, c=20)}, {"x": words(a=40, b=35, c=25)})

    table, text = sections(feature, SETTINGS, 1)

    assert isinstance(table, Table)
    assert isinstance(text, Text)
    cells = {row[0]: row[1:] for row in table.rows}
    assert cells["a"][:4] == ("50", "40", "0.497537", "0.399015")
    assert sum(float(row[-1]) for row in table.rows[:-1]) == pytest.approx(0.039971, abs=2e-6)
    assert table.rows[-1][-1] == "0.039971"
    assert "PSI = sum of (p - q) ln(p / q) = 0.039971." in text.body
    assert "Verdict: ok." in text.body


def test_machines_get_counts_shares_and_terms():
    (feature,) = judged({"x": REPEATED}, {"x": REPEATED + 30})

    found = explanation(feature, SETTINGS)

    assert sum(part["baseline"] for part in found["bins"]) == 500
    assert sum(part["psi"] for part in found["bins"]) == pytest.approx(found["psi"])
    assert sum(part["p"] for part in found["bins"]) == pytest.approx(1)
    assert found["expected_without_drift"] == pytest.approx(9 * (1 / 500 + 1 / 500))


def test_rows_without_a_value_are_a_bin_of_the_explanation_as_of_the_score():
    window = np.where(np.arange(500) % 5, REPEATED, np.nan)
    (feature,) = judged({"x": REPEATED}, {"x": window})

    found = explanation(feature, SETTINGS)

    assert {"bin": "(missing)", "baseline": 0, "window": 100}.items() <= found["bins"][-1].items()
    assert sum(part["psi"] for part in found["bins"]) == pytest.approx(feature.scores.psi)


def test_what_cannot_be_compared_is_told_and_not_worked_out():
    (feature,) = judged({"x": np.arange(100.0)}, {})

    (text,) = sections(feature, SETTINGS, 1)

    assert text.body == "The window has no such column. There is nothing to work out."
    assert explanation(feature, SETTINGS) == {"feature": "x", "message": "The window has no such column."}


def test_a_misspelt_feature_is_answered_with_the_closest():
    with pytest.raises(UsageError) as caught:
        chosen(judged({"age": np.arange(100.0)}, {"age": np.arange(100.0)}), "agee")

    assert caught.value.hint == "Did you mean 'age'?"

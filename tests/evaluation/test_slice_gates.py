import math
from dataclasses import replace

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from mlx_platform.core.errors import UsageError
from mlx_platform.core.verdict import Verdict
from mlx_platform.evaluation.compare import compare
from mlx_platform.evaluation.gate_parser import parse_gates
from mlx_platform.evaluation.gates import Defaults
from mlx_platform.evaluation.judge import Known
from mlx_platform.evaluation.measure import measure_scored
from mlx_platform.evaluation.metrics import METRICS
from mlx_platform.evaluation.scored import Classified, Predicted
from mlx_platform.evaluation.slice_gates import judge_slices
from mlx_platform.evaluation.slices import MOST_SLICES, Slice, name_of, requested, split


def _gate(metric="accuracy", *, by=("lang",), level="fail", rule=None, **limit):
    slices = {"by": list(by), "min_rows": 50} | (rule or {})
    gate = {"metric": metric, "level": level, "slices": slices} | limit
    return parse_gates({"version": 1, "gates": [gate]}).gates[0]


def _answers(rows, right):
    truth = np.arange(rows) % 2
    answer = truth.copy()
    answer[right:] = 1 - answer[right:]
    return Classified(truth, answer, None, 2)


def _slice(name, rows, right, before=None):
    scored = _answers(rows, right)
    comparison = None if before is None else compare(scored, _answers(rows, before))
    known = Known(measure_scored(scored, metrics=["accuracy"]), comparison)
    return Slice((("lang", name),), rows, scored, known)


def _verdicts(family):
    return {key[0][1]: str(judged.check.verdict) for key, judged in family.each.items()}


def test_slices_are_made_of_the_values_of_one_column_or_of_several():
    columns = {
        "lang": np.array(["de", "en", "de", None], object),
        "device": np.array([1.0, 2.0, 1.0, np.nan]),
    }

    one, two = split(columns, ["lang"]), split(columns, ["lang", "device"])

    assert {name_of(key): rows.tolist() for key, rows in one.items()} == {
        "lang=de": [0, 2],
        "lang=en": [1],
        "lang=(missing)": [3],
    }
    assert [name_of(key) for key in two] == [
        "lang=de, device=1",
        "lang=en, device=2",
        "lang=(missing), device=(missing)",
    ]
    assert two[("lang", "de"), ("device", "1")].tolist() == [0, 2]


def test_values_that_are_written_alike_make_one_slice():
    assert len(split({"a": np.array([3, 3.0, "3", b"3"], object)}, ["a"])) == 1
    assert len(split({"a": np.array([True, "true", 1], object)}, ["a"])) == 2


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (np.arange(MOST_SLICES + 1), "1,001 slices"),
        (np.zeros((3, 2)), "no single values"),
        (np.array([1, [2]], object), "Row 1"),
    ],
)
def test_a_column_that_makes_no_slices_is_refused(column, said):
    with pytest.raises(UsageError, match=said):
        split({"a": column}, ["a"])


def test_the_fewest_rows_of_a_slice_are_those_of_the_gate_that_asks_for_least():
    gates = [_gate(min=0.5), _gate(min=0.4, rule={"min_rows": 20}), _gate(min=0.3, by=[["lang", "device"]])]

    assert requested(gates, [("user",)]) == {("user",): 50, ("lang",): 20, ("lang", "device"): 50}


def test_slices_that_pass_fail_and_are_too_small_are_told_apart():
    slices = [_slice("de", 400, 390), _slice("fr", 400, 200), Slice((("lang", "xx"),), 12)]

    family = judge_slices(_gate(min=0.9), slices, metrics=METRICS)

    assert _verdicts(family) == {"de": "pass", "fr": "fail", "xx": "undecided"}
    assert family.judged.check.verdict is Verdict.FAIL
    assert family.judged.check.measured.startswith("lang=fr: 0.5000")
    assert family.judged.check.message == "1 of 2 slices fails: lang=fr. 1 left out"
    assert family.judged.check.threshold == ">= 0.9 by lang"
    assert family.judged.numbers["slices"]["failed"] == ["lang=fr"]
    assert family.judged.numbers["slices"]["left_out"] == ["lang=xx"]
    small = family.each[("lang", "xx"),].check
    assert (small.part, small.skipped) == ("lang=xx", "12 rows, and a slice is judged from 50")
    assert family.each[("lang", "fr"),].numbers["threshold"] == 0.9


def test_all_slices_must_pass_for_the_gate_to_pass():
    good, open_ = _slice("de", 2000, 1800, 1800), _slice("fr", 60, 54, 54)

    passed = judge_slices(_gate(max_drop="1pp"), [good])
    undecided = judge_slices(_gate(max_drop="1pp"), [good, open_])

    assert passed.judged.check.verdict is Verdict.PASS
    assert undecided.judged.check.verdict is Verdict.UNDECIDED
    assert "60 rows are too few" in undecided.each[("lang", "fr"),].check.message


@pytest.mark.parametrize("rows", [0, 12])
def test_a_required_slice_without_enough_rows_is_undecided(rows):
    gate = _gate(min=0.5, rule={"require": [{"lang": "it"}]})
    missing = Slice((("lang", "it"),), rows)

    family = judge_slices(gate, [_slice("de", 400, 390), missing], metrics=METRICS)

    assert family.judged.check.verdict is Verdict.UNDECIDED
    assert family.judged.numbers["slices"]["undecided"] == ["lang=it"]


def test_a_gate_none_of_whose_slices_is_large_enough_never_passes():
    for slices in ([], [Slice((("lang", "de"),), 49)]):
        family = judge_slices(_gate(min=0.1), slices, metrics=METRICS)

        assert family.judged.check.verdict is Verdict.UNDECIDED
        assert not family.judged.check.skipped


def test_without_a_baseline_a_drop_is_undecided_or_left_out_as_the_file_says():
    slices = [_slice("de", 400, 390)]

    undecided = judge_slices(_gate(max_drop="1pp"), slices)
    skipped = judge_slices(_gate(max_drop="1pp"), slices, Defaults(on_missing="skip"))

    assert undecided.judged.check.verdict is Verdict.UNDECIDED
    assert not undecided.judged.check.skipped
    assert "no baseline" in skipped.judged.check.skipped


# Exact accuracies below 0.8, of 100 rows each: z = (0.8 - right / 100) / 0.04.
_RIGHT = {"a": 70, "b": 72, "c": 73, "d": 90}


def test_holm_is_the_hand_computed_example():
    slices = [_slice(name, 100, right) for name, right in _RIGHT.items()]

    family = judge_slices(_gate(min=0.8), slices, metrics=METRICS)

    # p = 0.0062, 0.0228, 0.0401, 0.9938, times 4, 3, 2, 1 and never falling.
    adjusted = {key[0][1]: judged.numbers["p_adjusted"] for key, judged in family.each.items()}
    assert adjusted == pytest.approx({"a": 0.02484, "b": 0.06825, "c": 0.08012, "d": 0.99379}, abs=1e-5)
    assert _verdicts(family) == {"a": "fail", "b": "undecided", "c": "undecided", "d": "pass"}
    assert "may be so by chance" in family.each[("lang", "b"),].check.message
    p_values = [0.0062097, 0.0227501, 0.0400592, 0.9937903]
    assert list(adjusted.values()) == pytest.approx(multipletests(p_values, method="holm")[1], abs=1e-5)


def test_without_correction_each_slice_beyond_the_limit_fails():
    slices = [_slice(name, 100, right) for name, right in _RIGHT.items()]

    family = judge_slices(_gate(min=0.8, rule={"correct": "none"}), slices, metrics=METRICS)

    assert _verdicts(family) == {"a": "fail", "b": "fail", "c": "fail", "d": "pass"}


def test_what_chance_explains_can_be_told_to_fail():
    slices = [_slice(name, 100, right) for name, right in _RIGHT.items()]

    family = judge_slices(_gate(min=0.8), slices, Defaults(on_inconclusive="fail"), metrics=METRICS)

    assert _verdicts(family) == {"a": "fail", "b": "fail", "c": "fail", "d": "pass"}


def test_a_warning_about_slices_decides_nothing():
    family = judge_slices(_gate(min=0.9, level="warn"), [_slice("fr", 400, 200)], metrics=METRICS)

    assert family.judged.check.verdict is Verdict.FAIL
    assert "never decides" in family.judged.check.skipped
    assert all("never decides" in judged.check.skipped for judged in family.each.values())


def test_numbers_without_trials_are_held_against_their_limit_by_resampling():
    generator = np.random.default_rng(0)
    truth = generator.normal(0, 1, 300)
    scored = Predicted(truth, truth + generator.normal(0, 1.0, 300))
    one = Slice((("lang", "de"),), 300, scored, Known(measure_scored(scored, metrics=["mae", "max_error"])))

    error = float(np.abs(scored.answer - truth).mean())

    for limit, verdict in ((1.1 * error, "pass"), (0.7 * error, "fail"), (0.99 * error, "undecided")):
        assert _verdicts(judge_slices(_gate("mae", max=limit), [one], metrics=METRICS)) == {"de": verdict}
    assert _verdicts(judge_slices(_gate("max_error", max=0.1), [one], metrics=METRICS)) == {"de": "fail"}


def test_a_slice_with_one_class_cannot_be_measured_and_never_passes():
    scored = Classified(np.zeros(100, int), np.zeros(100, int), None, 2)
    one = Slice((("lang", "de"),), 100, scored, Known(measure_scored(scored, metrics=["f1_macro"])))

    family = judge_slices(_gate("f1_macro", min=0.0), [one], metrics=METRICS)

    assert family.judged.check.verdict is Verdict.UNDECIDED
    assert "cannot be measured" in family.each[("lang", "de"),].check.message


def test_shares_of_flips_are_judged_in_slices_too():
    gate = _gate("flips_lost", max="5%")

    family = judge_slices(gate, [_slice("de", 400, 300, 390), _slice("fr", 400, 390, 390)], metrics=METRICS)

    assert _verdicts(family) == {"de": "fail", "fr": "pass"}


def test_many_equally_good_slices_rarely_fail_and_one_that_is_bad_does():
    # 20 slices of 100 rows with a true accuracy at the limit: uncorrected, two of three gates would fail.
    generator = np.random.default_rng(4)
    gate = _gate(min=0.8)
    false, plain = 0, 0
    for _ in range(300):
        counts = generator.binomial(100, 0.8, 20)
        slices = [_bare(str(place), 100, int(right)) for place, right in enumerate(counts)]
        false += judge_slices(gate, slices, metrics=METRICS).judged.check.verdict is Verdict.FAIL
        plain += bool((counts < 80 - 1.6449 * 4).any())
    bad = [_bare(str(place), 100, 80) for place in range(19)] + [_bare("bad", 100, 60)]

    assert false / 300 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)
    assert plain / 300 > 0.4
    assert judge_slices(gate, bad, metrics=METRICS).judged.check.verdict is Verdict.FAIL


def _bare(name, rows, right):
    known = Known({"accuracy": replace(_MEASURED, value=right / rows, rows=rows)})
    return Slice((("lang", name),), rows, _answers(rows, right), known)


_MEASURED = measure_scored(_answers(100, 80), metrics=["accuracy"])["accuracy"]


def test_a_required_slice_without_its_column_is_answered_with_an_example():
    with pytest.raises(UsageError, match="'xx' does not say which column has it") as refusal:
        _gate(min=0.5, rule={"require": ["xx"]})
    assert refusal.value.hint == 'Write require = [{lang = "xx"}].'


def test_a_slice_of_an_empty_value_has_a_name():
    assert name_of((("lang", ""), ("device", "phone"))) == "lang=(empty), device=phone"

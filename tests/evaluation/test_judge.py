import math

import numpy as np
import orjson
import pytest

from mlx_platform.core.verdict import Verdict, verdict_of
from mlx_platform.evaluation.compare import compare
from mlx_platform.evaluation.gate_parser import parse_expression, parse_gates
from mlx_platform.evaluation.gates import Defaults
from mlx_platform.evaluation.judge import Known, judge, number, pair_measurements, shown, signed
from mlx_platform.evaluation.measure import measure_scored
from mlx_platform.evaluation.ratio import Ratio
from mlx_platform.evaluation.scored import Classified


def _answers(rows, right, *, classes=2):
    truth = np.arange(rows) % classes
    answer = truth.copy()
    answer[right:] = (answer[right:] + 1) % 2
    return Classified(truth, answer, None, 2)


def _judge(text, candidate, baseline=None, **defaults):
    comparison = None if baseline is None else compare(candidate, baseline)
    return judge(
        [parse_expression(text)], Known(measure_scored(candidate), comparison), Defaults(**defaults)
    )[0]


def test_a_limit_compares_the_value_and_shows_the_interval():
    passed, failed = (_judge(text, _answers(100, 91)) for text in ("accuracy>=0.91", "accuracy>=0.92"))

    assert passed.check.verdict is Verdict.PASS
    assert failed.check.verdict is Verdict.FAIL
    assert failed.check.measured == "0.9100 [0.8377, 0.9519]"
    assert (failed.check.name, failed.check.threshold) == ("accuracy", ">= 0.92")
    assert (failed.numbers["measured"], failed.numbers["threshold"]) == (0.91, 0.92)


def test_an_upper_limit_is_met_at_the_limit_itself():
    assert _judge("accuracy<=0.91", _answers(100, 91)).check.verdict is Verdict.PASS
    assert _judge("accuracy<=0.90", _answers(100, 91)).check.verdict is Verdict.FAIL


def test_a_metric_that_cannot_be_measured_never_passes():
    one_class = Classified(np.zeros(300, int), np.zeros(300, int), None, 2)

    for text in ("f1_macro>=0", "log_loss<=100"):
        judged = _judge(text, one_class)

        assert judged.check.verdict is Verdict.UNDECIDED
        assert "cannot be measured" in judged.check.message


def test_a_metric_that_nobody_measured_never_passes():
    judged = judge([parse_expression("model_size_mb<=30")], Known({}))[0]

    assert judged.check.verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("right", "verdict"), [(900, Verdict.PASS), (880, Verdict.FAIL), (893, Verdict.UNDECIDED)]
)
def test_a_drop_is_judged_by_the_paired_test(right, verdict):
    judged = _judge("accuracy:max_drop=1pp", _answers(1000, right), _answers(1000, 900))

    assert judged.check.verdict is verdict
    assert judged.numbers["measured"] == pytest.approx((right - 900) / 1000)
    assert judged.numbers["threshold"] == -0.01
    assert judged.check.measured.startswith(f"{(right - 900) / 10:+.2f} pp [")


def test_an_open_drop_names_the_rows_and_can_be_told_to_fail():
    sides = _answers(100, 90), _answers(100, 90)

    undecided = _judge("accuracy:max_drop=1pp", *sides)
    failed = _judge("accuracy:max_drop=1pp", *sides, on_inconclusive="fail")
    error = _judge("accuracy:max_drop=1pp", *sides, on_inconclusive="error")

    assert "about 268 would" in undecided.check.message
    assert undecided.numbers["rows_needed"] == 268
    verdicts = (undecided.check.verdict, failed.check.verdict, error.check.verdict)
    assert verdicts == (Verdict.UNDECIDED, Verdict.FAIL, Verdict.ERROR)


def test_a_rise_is_shown_as_a_rise(classified):
    better, worse = classified(rows=800, right=0.95), classified(rows=800, right=0.5)
    worse = Classified(better.truth, worse.answer, worse.probabilities, 4)

    judged = _judge("log_loss:max_rise=1%rel", worse, better)

    assert judged.check.verdict is Verdict.FAIL
    assert judged.check.measured.startswith("+")
    assert judged.numbers["gain"] < 0 < judged.numbers["threshold"] < judged.numbers["measured"]


@pytest.mark.parametrize(
    ("on_missing", "verdict", "skipped"),
    [
        ("undecided", Verdict.UNDECIDED, False),
        ("error", Verdict.ERROR, False),
        ("skip", Verdict.UNDECIDED, True),
    ],
)
def test_a_missing_baseline_never_passes(on_missing, verdict, skipped):
    for text in ("accuracy:max_drop=1pp", "agreement>=0.9"):
        judged = _judge(text, _answers(500, 480), on_missing=on_missing)

        assert judged.check.verdict is verdict
        assert bool(judged.check.skipped) is skipped
        assert verdict_of([judged.check]) is not Verdict.PASS


def test_a_warning_is_shown_and_decides_nothing():
    gates = parse_gates(
        {
            "version": 1,
            "gates": [
                {"metric": "accuracy", "min": 0.99, "level": "warn"},
                {"metric": "accuracy", "min": 0.5},
            ],
        }
    ).gates

    warning, real = judge(gates, Known(measure_scored(_answers(100, 91))))

    assert warning.check.verdict is Verdict.FAIL
    assert warning.check.skipped
    assert verdict_of([warning.check, real.check]) is Verdict.PASS
    assert verdict_of([warning.check]) is Verdict.UNDECIDED


def test_agreement_and_flips_are_gates_of_their_own():
    sides = _answers(1000, 890), _answers(1000, 900)

    assert _judge("agreement>=0.99", *sides).check.verdict is Verdict.PASS
    assert _judge("flips_lost<=0.5%", *sides).check.verdict is Verdict.FAIL
    assert _judge("flips_won<=0", *sides).check.verdict is Verdict.PASS
    assert pair_measurements(None) == {}


@pytest.mark.parametrize("text", ["agreement>=0.99", "flips_lost<=0.01", "accuracy:max_drop=1pp"])
def test_what_a_package_has_in_common_with_itself_decides_nothing(text):
    answers = _answers(1000, 910)
    comparison = compare(answers, answers, identical=True)
    judged = judge([parse_expression(text)], Known(measure_scored(answers), comparison))

    assert "same package" in judged[0].check.skipped
    assert verdict_of([judged[0].check]) is Verdict.UNDECIDED


def test_a_gate_is_json_ready(classified):
    scored = classified()
    gates = [parse_expression(text) for text in ("accuracy>=0.5", "accuracy:max_drop=1pp", "log_loss<=1")]

    documents = [
        judged.document() for judged in judge(gates, Known(measure_scored(scored), compare(scored, scored)))
    ]

    assert orjson.loads(orjson.dumps(documents)) == documents
    assert documents[1]["limit"] == "max_drop"


def test_numbers_are_shown_with_what_they_need():
    assert [number(value) for value in (0.0, 0.91234567, 12.3456789, 12345.678, 0.00001234, math.nan)] == [
        "0.0000",
        "0.9123",
        "12.3457",
        "12,345.7",
        "1.234e-05",
        "not measured",
    ]
    assert shown(0.5) == "0.5000"
    assert [signed(value) for value in (0.5, -0.5, 0.0)] == ["+0.5000", "-0.5000", "+0.0000"]


@pytest.mark.parametrize(
    ("lower", "upper", "verdict"),
    [(0.9, 1.1, Verdict.PASS), (1.11, 1.3, Verdict.FAIL), (1.0, 1.2, Verdict.UNDECIDED)],
)
def test_a_ratio_is_judged_by_its_interval(lower, upper, verdict):
    gate = parse_gates({"version": 1, "gates": [{"metric": "latency_p95_ms", "max_ratio": 1.1}]}).gates[0]
    ratio = Ratio((lower + upper) / 2, lower, upper, 11.0, 10.0, samples=200)

    judged = judge([gate], Known({}, ratios={"latency_p95_ms": ratio}))[0]

    assert judged.check.verdict is verdict
    assert judged.numbers["threshold"] == 1.1
    assert judged.numbers["measured"] == ratio.value
    assert bool(judged.check.message) is (verdict is Verdict.UNDECIDED)


def test_a_ratio_without_an_interval_is_exact_and_one_that_was_not_measured_decides_nothing():
    gate = parse_gates({"version": 1, "gates": [{"metric": "model_size_mb", "max_ratio": 1.1}]}).gates[0]
    nan = math.nan
    exact = Ratio(1.2, nan, nan, 12.0, 10.0)
    failed = Ratio(nan, nan, nan, nan, nan, reason="too few calls")

    verdicts = [
        judge([gate], Known({}, ratios=ratios))[0].check.verdict
        for ratios in ({"model_size_mb": exact}, {"model_size_mb": failed}, {})
    ]

    assert verdicts == [Verdict.FAIL, Verdict.UNDECIDED, Verdict.UNDECIDED]


def test_a_guard_is_answered_by_its_own_comparison():
    file = parse_gates(
        {
            "version": 1,
            "gates": [{"metric": "accuracy", "max_drop": "3pp", "guard": {"max_drop": "4pp"}}],
        }
    )
    now, before, first = _answers(1000, 880), _answers(1000, 900), _answers(1000, 950)
    known = Known({}, compare(now, before), {"pinned": compare(now, first)})

    step, total = judge(file.gates, known)
    without = judge(file.gates, Known({}, compare(now, before)))[1]

    assert (step.check.verdict, total.check.verdict) == (Verdict.PASS, Verdict.FAIL)
    assert (step.numbers["baseline"], total.numbers["baseline"]) == (0.9, 0.95)
    assert without.check.verdict is Verdict.UNDECIDED
    assert "nothing to guard against" in without.check.message

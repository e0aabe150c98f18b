import numpy as np
import orjson
import pytest

from mlx_platform.core.statistics import clopper_pearson_lower
from mlx_platform.core.verdict import Verdict
from mlx_platform.evaluation.agreement import compare_answers
from mlx_platform.evaluation.consistency import (
    Tally,
    first_difference,
    judge_agreement,
    requests_needed,
    runtime_difference,
)

HASHES = {"raw": "1", "tensor": "2", "logits": "3", "output": "4"}


def _tally(requests, bad, *, outputs=10):
    tally = Tally()
    for number in range(requests):
        logged, replayed = np.zeros(outputs), np.zeros(outputs)
        replayed[0] = number < bad
        tally.add(f"r-{number}", compare_answers({"y": logged}, {"y": replayed}), HASHES, HASHES)
    return tally


def test_one_bad_element_makes_a_request_disagree():
    tally = _tally(1000, 50)

    assert tally.element_agreement == pytest.approx(0.995)
    assert tally.agreement == 0.95
    assert judge_agreement(tally).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("requests", "bad", "verdict"),
    [
        (0, 0, Verdict.UNDECIDED),
        (1, 0, Verdict.UNDECIDED),
        (298, 0, Verdict.UNDECIDED),
        (299, 0, Verdict.PASS),
        (300, 2, Verdict.UNDECIDED),
        (628, 2, Verdict.PASS),
        (628, 7, Verdict.FAIL),
        (2, 1, Verdict.FAIL),
    ],
)
def test_99_percent_must_be_shown_and_not_just_reached(requests, bad, verdict):
    check = judge_agreement(_tally(requests, bad, outputs=1))

    assert check.verdict is verdict
    if verdict is Verdict.UNDECIDED and requests:
        needed = requests_needed(bad)
        assert f"{needed:,} with {bad} mismatches would" in check.message


@pytest.mark.parametrize(("mismatches", "requests"), [(0, 299), (1, 473), (2, 628), (10, 1693), (50, 6323)])
def test_requests_needed_are_the_fewest_that_show_it(mismatches, requests):
    assert requests_needed(mismatches) == requests


def test_requests_needed_for_another_threshold():
    needed = requests_needed(3, 0.9)

    assert clopper_pearson_lower(needed - 3, needed) >= 0.9 > clopper_pearson_lower(needed - 4, needed - 1)
    assert requests_needed(1, 1.0) == 0


def test_the_first_stage_that_differs_is_named():
    assert first_difference(HASHES, HASHES) == ""
    assert first_difference(HASHES, HASHES | {"logits": "x", "output": "y"}) == "logits"
    assert first_difference({"output": "1"}, HASHES) == "output"
    assert first_difference({}, HASHES) == ""


def _mismatching(stage, *, requests=10, agreeing_differ=False):
    tally = Tally()
    good = compare_answers({"y": np.zeros(1)}, {"y": np.zeros(1)})
    bad = compare_answers({"y": np.zeros(1)}, {"y": np.ones(1)})
    changed = HASHES | dict.fromkeys(list(HASHES)[list(HASHES).index(stage) :], "x")
    for number in range(requests):
        tally.add(f"bad-{number}", bad, HASHES, changed)
        tally.add(f"good-{number}", good, HASHES, changed if agreeing_differ else HASHES)
    return tally


@pytest.mark.parametrize(
    ("stage", "cause"),
    [
        ("raw", "inputs in the log"),
        ("tensor", "pre-processing"),
        ("logits", "runtime"),
        ("output", "post-processing"),
    ],
)
def test_a_failure_says_at_which_stage_it_begins(stage, cause):
    tally = _mismatching(stage)

    assert tally.diverging_stage == stage
    assert cause in judge_agreement(tally).message
    assert tally.stages[stage].first == 10
    assert tally.stages[stage].equal == 10


def test_outputs_that_never_repeat_bit_by_bit_do_not_accuse_the_model_alone():
    message = judge_agreement(_mismatching("logits", agreeing_differ=True)).message

    assert "or post-processing" in message


def test_requests_that_cannot_be_replayed_disagree():
    tally = _tally(300, 0)
    for number in range(4):
        tally.add_refused(f"odd-{number}")

    assert tally.agreement == pytest.approx(300 / 304)
    assert tally.reasons == {"unparsable": 4}
    assert judge_agreement(tally).verdict is Verdict.FAIL


def test_a_few_mismatching_requests_are_remembered_by_id():
    tally = _tally(100, 60)

    document = tally.document()

    assert document["examples"] == [f"r-{number}" for number in range(20)]
    assert document["reasons"] == {"value": 60}
    assert orjson.loads(orjson.dumps(document)) == document


def test_nothing_compared_has_no_agreement_at_all():
    document = Tally().document()

    assert document["agreement"] == {
        "request": None,
        "element": None,
        "label": None,
        "lower": None,
        "ties": 0,
    }


@pytest.mark.parametrize(
    ("served", "words"),
    [
        ("", ""),
        ("mlx/1 onnxruntime/2 cpu", ""),
        ("mlx/1 onnxruntime/1 cpu", "onnxruntime/1 (here 2)"),
        ("mlx/1 onnxruntime/2 cuda:1", "cuda:1 (here cpu)"),
        ("mlx/1 onnxruntime/2 tokenizers/3 cpu", "tokenizers/3 (here none)"),
        ("onnxruntime/2 cpu", "mlx/none (here 1)"),
    ],
)
def test_runtimes_differ_in_libraries_and_devices(served, words):
    assert runtime_difference(served, "mlx/1 onnxruntime/2 cpu") == words

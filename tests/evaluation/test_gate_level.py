"""Whole gates on simulated models: how often they fail, or pass, where they should not.

Numbers are drawn with a fixed seed, so a run is the same every time; bounds are the level and three standard
errors of what is counted.
"""

import math
from collections import Counter

import numpy as np
import pytest

from mlx_platform.core.verdict import Verdict
from mlx_platform.evaluation.compare import compare
from mlx_platform.evaluation.gate_parser import parse_gates
from mlx_platform.evaluation.judge import Known, judge
from mlx_platform.evaluation.metrics import METRICS
from mlx_platform.evaluation.scored import Classified, Predicted
from mlx_platform.evaluation.slice_gates import judge_slices
from mlx_platform.evaluation.slices import Slice

LEVEL = 0.05
RUNS = 250


def _most(level: float = LEVEL, runs: int = RUNS) -> float:
    return level + 3 * math.sqrt(level * (1 - level) / runs)


def _gate(metric, **limit):
    return parse_gates({"version": 1, "gates": [{"metric": metric} | limit]}).gates[0]


def _pair(generator, rows, *, drop, flips, groups=None, weights=None):
    """Two models of which `flips` rows change sides, with that much less accuracy in the long run."""
    unit = np.arange(rows) if groups is None else groups
    drawn = generator.random(int(unit.max()) + 1)[unit]
    truth = np.zeros(rows, np.int64)
    before = generator.random(int(unit.max()) + 1)[unit] < 0.1
    lost, won = drawn < (flips + drop) / 2, (drawn >= (flips + drop) / 2) & (drawn < flips)
    ours = np.where(lost, 1, np.where(won, 0, before))
    theirs = np.where(lost, 0, np.where(won, 1, before))
    return tuple(
        Classified(truth, answer.astype(np.int64), None, 2, weights=weights, groups=groups)
        for answer in (ours, theirs)
    )


def _verdicts(gate, pairs):
    found = Counter()
    for ours, theirs in pairs:
        known = Known({}, compare(ours, theirs, metrics=[gate.metric]))
        found[judge([gate], known)[0].check.verdict] += 1
    return {verdict: found[verdict] / sum(found.values()) for verdict in Verdict}


@pytest.mark.parametrize("rows", [300, 1000])
def test_a_loss_at_the_limit_of_accuracy_passes_and_fails_as_often_as_the_level_says(rows):
    generator = np.random.default_rng(rows)
    pairs = (_pair(generator, rows, drop=0.03, flips=0.1) for _ in range(4 * RUNS))

    found = _verdicts(_gate("accuracy", max_drop="3pp"), pairs)

    assert found[Verdict.PASS] <= _most(runs=4 * RUNS)
    assert found[Verdict.FAIL] <= _most(runs=4 * RUNS)
    assert found[Verdict.UNDECIDED] > 0.85


def test_an_equally_good_model_never_fails_and_passes_with_the_rows_that_were_said_to_decide():
    generator = np.random.default_rng(2)

    # 618 rows for each percent of flips rule out one point with 80 % power.
    found = _verdicts(
        _gate("accuracy", max_drop="1pp"),
        (_pair(generator, 3090, drop=0, flips=0.05) for _ in range(RUNS)),
    )

    assert found[Verdict.FAIL] <= 0.01
    assert found[Verdict.PASS] == pytest.approx(0.8, abs=0.06)


def test_superiority_is_seen_where_there_is_none_no_more_often_than_the_level_says():
    generator = np.random.default_rng(3)

    found = _verdicts(
        _gate("accuracy", superiority=True),
        (_pair(generator, 500, drop=0, flips=0.1) for _ in range(2 * RUNS)),
    )

    assert found[Verdict.PASS] <= _most(runs=2 * RUNS)
    assert found[Verdict.FAIL] <= _most(runs=2 * RUNS)


def test_rows_that_repeat_each_other_count_once():
    generator = np.random.default_rng(4)
    groups = np.repeat(np.arange(100), 5)

    def pairs(known):
        for _ in range(RUNS):
            yield (
                _pair(generator, 500, drop=0.03, flips=0.15, groups=groups)
                if known
                else tuple(
                    Classified(one.truth, one.answer, None, 2)
                    for one in _pair(generator, 500, drop=0.03, flips=0.15, groups=groups)
                )
            )

    gate = _gate("accuracy", max_drop="3pp")
    clustered, naive = _verdicts(gate, pairs(known=True)), _verdicts(gate, pairs(known=False))

    assert max(clustered[Verdict.PASS], clustered[Verdict.FAIL]) <= _most()
    assert max(naive[Verdict.PASS], naive[Verdict.FAIL]) > 0.12


def test_weights_are_part_of_the_test():
    generator = np.random.default_rng(5)

    def pairs():
        for _ in range(RUNS):
            weights = generator.exponential(1, 400)
            yield _pair(generator, 400, drop=0.03, flips=0.12, weights=weights)

    found = _verdicts(_gate("accuracy", max_drop="3pp"), pairs())

    assert max(found[Verdict.PASS], found[Verdict.FAIL]) <= _most()


@pytest.mark.parametrize("shape", ["heavy", "skewed"])
def test_losses_of_awkward_shape_keep_the_level(shape):
    generator = np.random.default_rng(6)

    def pairs():
        for _ in range(RUNS):
            truth = np.zeros(300)
            before = np.abs(generator.normal(0, 1, 300)) + 10
            if shape == "heavy":
                more = 0.3 + generator.standard_t(3, 300)
            else:  # few rows that lose much, which samples often lack
                more = generator.normal(0, 0.05, 300) + 10 * (generator.random(300) < 0.03)
            yield Predicted(truth, before + more), Predicted(truth, before)

    found = _verdicts(_gate("mae", max_rise="0.3abs"), pairs())

    assert max(found[Verdict.PASS], found[Verdict.FAIL]) <= _most()


def test_slices_that_are_all_equally_good_fail_together_no_more_often_than_the_level_says():
    generator = np.random.default_rng(7)
    gate = _gate("accuracy", max_drop="3pp", slices={"by": "lang", "min_rows": 50})
    found = Counter()
    for _ in range(RUNS):
        slices = []
        for place in range(8):
            ours, theirs = _pair(generator, 200, drop=0.03, flips=0.12)
            known = Known({}, compare(ours, theirs, metrics=["accuracy"]))
            slices.append(Slice((("lang", str(place)),), 200, ours, known))
        found[judge_slices(gate, slices, metrics=METRICS).judged.check.verdict] += 1

    assert found[Verdict.FAIL] / RUNS <= _most()
    assert found[Verdict.PASS] == 0

import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.evaluation.gate_parser import parse_expression, parse_gates
from mlx_platform.evaluation.gates import Defaults, check_contradictions, check_task


def _gates(*entries, **rest):
    return parse_gates({"version": 1, "gates": list(entries), **rest}, source="gates.toml")


def test_a_table_gives_a_gate_for_each_of_its_limits():
    file = _gates({"metric": "accuracy", "min": 0.8, "max": 0.99, "max_drop": "1pp"})

    assert [gate.name for gate in file.gates] == [
        "accuracy >= 0.8",
        "accuracy <= 0.99",
        "accuracy max_drop 1pp",
    ]
    assert [gate.needs_baseline for gate in file.gates] == [False, False, True]
    assert file.defaults == Defaults()


def test_everything_that_a_gate_file_can_say_is_read():
    file = _gates(
        {"metric": "log_loss", "max_rise": "5%rel", "abs_floor": 0.005, "level": "warn"},
        {"metric": "flips_lost", "max": "2%"},
        {"metric": "model_size_mb", "max": 30},
        dataset={"path": "gate.parquet", "id": "row", "label": "y", "sha256": "ab", "min_rows": 1000},
        baseline="production",
        defaults={"confidence": 0.9, "seed": 7, "on_inconclusive": "fail", "on_missing": "skip"},
    )

    rise, flips, size = file.gates
    assert (rise.margin.amount, rise.margin.relative, rise.margin.floor, rise.warn) == (
        0.05,
        True,
        0.005,
        True,
    )
    assert (flips.threshold, flips.needs_baseline) == (0.02, True)
    assert size.threshold == 30
    assert (file.dataset.label, file.dataset.min_rows, file.baseline) == ("y", 1000, "production")
    assert (file.defaults.confidence, file.defaults.seed) == (0.9, 7)


@pytest.mark.parametrize(
    ("text", "amount", "relative"),
    [
        ("1pp", 0.01, False),
        ("0.5 pp", 0.005, False),
        ("0.01abs", 0.01, False),
        ("2%rel", 0.02, True),
        (".5%rel", 0.005, True),
    ],
)
def test_a_drop_has_a_unit(text, amount, relative):
    margin = _gates({"metric": "accuracy", "max_drop": text}).gates[0].margin

    assert margin.amount == pytest.approx(amount)
    assert margin.relative is relative


@pytest.mark.parametrize("value", [0.01, 1, "1", "1%", "1 point", "-1pp", "1pp!", "", None, True, ["1pp"]])
def test_a_drop_without_a_known_unit_is_refused(value):
    with pytest.raises(UsageError) as refusal:
        _gates({"metric": "accuracy", "max_drop": value})

    assert "1pp" in refusal.value.hint


@pytest.mark.parametrize(
    ("entry", "said", "hint"),
    [
        ({"metric": "acuracy", "min": 0.9}, "no metric 'acuracy'", "'accuracy'"),
        ({"metric": "accuracy", "mim": 0.9}, "unknown key 'mim'", "'min'"),
        ({"min": 0.9}, "metric is missing", "accuracy"),
        ({"metric": 3, "min": 0.9}, "3 is no metric's name", ""),
        ({"metric": "accuracy"}, "no limit", "min"),
        ({"metric": "accuracy", "superiority": False}, "no limit", "min"),
        ({"metric": "accuracy", "superiority": "yes"}, "true or false", ""),
        ({"metric": "accuracy", "min": 90}, "between 0 and 1", "90%"),
        ({"metric": "accuracy", "min": -0.1}, "between 0 and 1", "90%"),
        ({"metric": "accuracy", "min": float("nan")}, "no finite number", ""),
        ({"metric": "accuracy", "min": True}, "no finite number", ""),
        ({"metric": "accuracy", "min": "much"}, "no finite number", ""),
        ({"metric": "rmse", "max": "5%"}, "no share", ""),
        ({"metric": "accuracy", "max_rise": "1pp"}, "higher is better", "max_drop"),
        ({"metric": "log_loss", "max_drop": "1%rel"}, "lower is better", "max_rise"),
        ({"metric": "log_loss", "max_rise": "1pp"}, "no percentage points", "1%rel"),
        ({"metric": "bias", "max_rise": "1abs"}, "neither direction", "min and max"),
        ({"metric": "agreement", "max_drop": "1pp"}, "min or max only", ""),
        ({"metric": "accuracy", "max_drop": "0pp"}, "never be shown", "superiority"),
        ({"metric": "accuracy", "max_drop": "100pp"}, "every loss", ""),
        ({"metric": "accuracy", "min": 0.9, "abs_floor": 0.1}, "abs_floor belongs", ""),
        ({"metric": "accuracy", "max_drop": "1pp", "abs_floor": -1}, "negative", ""),
        ({"metric": "accuracy", "min": 0.9, "level": "info"}, "level is", ""),
        ("accuracy>=0.9", "not a table", ""),
    ],
)
def test_a_gate_that_cannot_be_meant_is_refused_with_its_place_and_a_way_out(entry, said, hint):
    with pytest.raises(UsageError, match=r"gates.toml, gate 2") as refusal:
        _gates({"metric": "accuracy", "min": 0.5}, entry)

    assert said in refusal.value.message
    assert hint in refusal.value.hint


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"gates": []}, "version = 1"),
        ({"version": 2, "gates": []}, "version = 1"),
        ({"version": True, "gates": []}, "version = 1"),
        ({"version": 1, "gate": []}, "unknown key 'gate'"),
        ({"version": 1, "gates": {"metric": "accuracy"}}, "not a list"),
        ({"version": 1, "baseline": 3}, "baseline"),
        ({"version": 1, "defaults": {"confidence": 95}}, "between 0.5 and 1"),
        ({"version": 1, "defaults": {"seed": -1}}, "seed is a whole number"),
        ({"version": 1, "defaults": {"on_missing": "pass"}}, "on_missing is one of"),
        ({"version": 1, "defaults": {"on_inconclusive": ["fail"]}}, "on_inconclusive is one of"),
        ({"version": 1, "defaults": {"alpha": 0.05}}, "unknown key 'alpha'"),
        ({"version": 1, "dataset": {"min_rows": 1.5}}, "min_rows is a whole number"),
        ({"version": 1, "dataset": {"label": 1}}, "label is not a text"),
        ([], "not a table"),
        (None, "not a table"),
        ({1: "version"}, "not a table"),
    ],
)
def test_a_file_that_is_no_gate_file_is_refused(document, said):
    with pytest.raises(UsageError, match=r"gates.toml") as refusal:
        parse_gates(document, source="gates.toml")

    assert said in refusal.value.message


def test_limits_that_no_model_can_meet_together_are_refused():
    with pytest.raises(UsageError, match=r"at least 0.9 and at most 0.8"):
        _gates({"metric": "accuracy", "min": 0.9, "max": 0.8})
    with pytest.raises(UsageError, match="cannot be"):
        _gates({"metric": "mae", "min": 3}, {"metric": "mae", "max": 2})
    check_contradictions([parse_expression("mae>=2"), parse_expression("mae<=2")])


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("accuracy>=0.9", "accuracy >= 0.9", 0.9),
        (" accuracy >= 90% ", "accuracy >= 90%", 0.9),
        ("log_loss<=0.4", "log_loss <= 0.4", 0.4),
        ("bias>=-0.5", "bias >= -0.5", -0.5),
        ("accuracy:min=0.9", "accuracy >= 0.9", 0.9),
    ],
)
def test_an_expression_is_a_gate_on_one_line(text, name, value):
    gate = parse_expression(text)

    assert (gate.name, gate.threshold) == (name, pytest.approx(value))


def test_expressions_also_name_drops_and_superiority():
    assert parse_expression("accuracy:max_drop=1pp").margin.amount == pytest.approx(0.01)
    assert parse_expression("accuracy:superiority=true").limit == "superiority"


@pytest.mark.parametrize(
    "text",
    [
        "accuracy",
        "accuracy>0.9",
        "accuracy==0.9",
        ">=0.9",
        "accuracy>=",
        "accuracy:1pp",
        "accuracy>=0.9<=1",
        "acc uracy>=1",
    ],
)
def test_an_expression_that_cannot_be_read_shows_how_to_write_one(text):
    with pytest.raises(UsageError) as refusal:
        parse_expression(text)

    assert "accuracy>=0.9" in refusal.value.hint


def test_a_misspelt_word_in_an_expression_is_answered_with_the_closest_one():
    with pytest.raises(UsageError) as metric:
        parse_expression("f1_marco>=0.9")
    with pytest.raises(UsageError) as key:
        parse_expression("accuracy:max_dorp=1pp")

    assert "'f1_macro'" in metric.value.hint
    assert "'max_drop'" in key.value.hint


def test_a_gate_of_another_task_is_refused():
    with pytest.raises(UsageError, match="belongs to regression"):
        check_task([parse_expression("rmse<=2")], "classification")
    with pytest.raises(UsageError, match="belongs to classification"):
        check_task([parse_expression("agreement>=0.9")], "regression")
    check_task([parse_expression("model_size_mb<=3")], "regression")


def test_files_that_ask_the_same_have_the_same_digest_however_they_are_written():
    least, drop = {"metric": "accuracy", "min": 0.9}, {"metric": "accuracy", "max_drop": "1pp"}
    file = _gates(least, drop)

    assert len(file.digest) == 16
    assert _gates(drop, least, least).digest == file.digest
    assert _gates({"metric": "accuracy", "min": "90%", "max_drop": "0.01abs"}).digest == file.digest
    assert _gates(least, drop, baseline="production", defaults={"confidence": 0.95}).digest == file.digest


@pytest.mark.parametrize(
    "other",
    [
        _gates({"metric": "accuracy", "min": 0.89}),
        _gates({"metric": "accuracy", "min": 0.9}, {"metric": "f1_macro", "min": 0.9}),
        _gates({"metric": "accuracy", "min": 0.9, "level": "warn"}),
        _gates({"metric": "accuracy", "min": 0.9}, baseline="none"),
        _gates({"metric": "accuracy", "min": 0.9}, defaults={"on_missing": "skip"}),
        _gates({"metric": "accuracy", "min": 0.9}, dataset={"min_rows": 10}),
        _gates(),
    ],
)
def test_files_that_ask_something_else_have_another_digest(other):
    assert other.digest != _gates({"metric": "accuracy", "min": 0.9}).digest

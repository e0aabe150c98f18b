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


def test_slices_are_columns_and_combinations_of_them():
    rule = {"by": ["lang", ["lang", "device"]], "min_rows": 100, "require": [{"device": 3.0, "lang": "de"}]}

    gate = _gates({"metric": "f1_macro", "max_drop": "1pp", "slices": rule}).gates[0]

    assert gate.slices.by == (("lang",), ("lang", "device"))
    assert (gate.slices.min_rows, gate.slices.correct) == (100, "holm")
    assert gate.slices.require == ((("lang", "de"), ("device", "3")),)
    assert gate.name == "f1_macro max_drop 1pp by lang, lang+device"
    assert _gates({"metric": "mae", "max": 3, "slices": {"by": "lang"}}).gates[0].slices.min_rows == 50


@pytest.mark.parametrize(
    ("slices", "said"),
    [
        ({"by": ["lang", ["lang"]]}, "names lang twice"),
        ({"by": []}, "names no column"),
        ({"by": ["lang"], "require": [{"device": "x"}]}, "no slices are made by device"),
        ({"by": ["lang"], "min_row": 3}, "unknown key 'min_row'"),
        ({"by": [["a", "a"]]}, "neither a column nor a list"),
        ({"by": ["lang"], "correct": "bonferroni"}, "holm, none"),
        ({"by": ["lang"], "min_rows": 0}, "from 1"),
    ],
)
def test_slices_that_cannot_be_meant_are_refused(slices, said):
    with pytest.raises(UsageError, match=said):
        _gates({"metric": "accuracy", "min": 0.5, "slices": slices})


def test_a_package_has_no_slices():
    with pytest.raises(UsageError, match="has no slices"):
        _gates({"metric": "model_size_mb", "max": 3, "slices": {"by": "lang"}})


def test_a_guard_is_a_gate_of_its_own_against_the_pinned_version():
    step, total = _gates(
        {"metric": "accuracy", "max_drop": "1pp", "level": "warn", "guard": {"max_drop": "2pp"}}
    ).gates

    assert (step.guard, step.warn, step.margin.amount) == ("", True, pytest.approx(0.01))
    assert (total.guard, total.warn, total.margin.amount) == ("pinned", False, pytest.approx(0.02))
    assert total.name == "accuracy max_drop 2pp against pinned"
    assert _gates({"metric": "accuracy", "max_drop": "1pp", "guard": {"max_drop": "2pp"}}).guards == (
        "pinned",
    )


def test_a_guard_of_the_file_watches_every_loss_without_a_guard_of_its_own():
    file = _gates(
        {"metric": "accuracy", "max_drop": "1pp", "guard": {"max_drop": "2pp"}},
        {"metric": "log_loss", "max_rise": "5%rel"},
        {"metric": "accuracy", "min": 0.5},
        guard="version:3",
    )

    assert [(gate.name, gate.warn) for gate in file.gates if gate.guard] == [
        ("accuracy max_drop 2pp against pinned", False),
        ("log_loss max_rise 5%rel against version:3", True),
    ]


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        ({"min": 0.5, "guard": {"max_drop": "2pp"}}, "limits the loss in all"),
        ({"max_drop": "1pp", "guard": {"baseline": "pinned"}}, "limits the loss in all"),
        ({"max_drop": "1pp", "guard": {"max_rise": "2%rel"}}, "higher is better"),
        ({"max_drop": "1pp", "guard": {"max_drop": "2"}}, "no unit"),
        ({"max_drop": "1pp", "guard": "pinned"}, "not a table"),
    ],
)
def test_a_guard_that_cannot_be_meant_is_refused(gate, said):
    with pytest.raises(UsageError, match=said):
        _gates({"metric": "accuracy"} | gate)


def test_latencies_and_sizes_have_a_limit_of_candidate_over_baseline():
    gates = _gates(
        {"metric": "latency_p95_ms", "max_ratio": 1.1}, {"metric": "model_size_mb", "max_ratio": "90%"}
    )

    assert [gate.threshold for gate in gates.gates] == [1.1, 0.9]
    assert all(gate.needs_baseline for gate in gates.gates)
    for metric in ("accuracy", "throughput_rps"):
        with pytest.raises(UsageError, match="max_ratio limits latencies and sizes"):
            _gates({"metric": metric, "max_ratio": 1.1})
    with pytest.raises(UsageError, match="cannot be a limit"):
        _gates({"metric": "latency_p95_ms", "max_ratio": 0})


def test_a_gain_and_a_tolerated_loss_of_one_metric_contradict_each_other():
    both = {"metric": "accuracy", "max_drop": "1pp", "superiority": True}
    with pytest.raises(UsageError, match="must be better than the baseline, and may lose 1pp"):
        _gates(both)
    with pytest.raises(UsageError, match="must be better"):
        check_contradictions(
            [parse_expression("mae:superiority=true"), parse_expression("mae:max_rise=1%rel")]
        )

    assert len(_gates(both | {"level": "warn"}).gates) == 2
    sliced = {"metric": "accuracy", "superiority": True, "slices": {"by": "lang"}}
    assert len(_gates({"metric": "accuracy", "max_drop": "1pp"}, sliced).gates) == 2


def test_limits_contradict_each_other_across_slices():
    sliced = {"metric": "accuracy", "max": 0.8, "slices": {"by": "lang"}}

    with pytest.raises(UsageError, match=r"at least 0\.9 and at most 0\.8") as refusal:
        _gates({"metric": "accuracy", "min": 0.9}, sliced)

    assert "slices" in refusal.value.hint


def test_the_digest_grows_with_what_gates_can_ask_and_not_with_where_they_stand(tmp_path):
    plain = {"metric": "accuracy", "max_drop": "1pp"}
    asked = [
        plain,
        plain | {"slices": {"by": "lang"}},
        plain | {"slices": {"by": "lang", "min_rows": 51}},
        plain | {"slices": {"by": "lang", "correct": "none"}},
        plain | {"slices": {"by": "lang", "require": [{"lang": "de"}]}},
        plain | {"guard": {"max_drop": "2pp"}},
        plain | {"guard": {"max_drop": "2pp", "baseline": "version:1"}},
    ]

    digests = {_gates(gate).digest for gate in asked}
    moved = parse_gates({"version": 1, "gates": [plain]}, source="other.toml", lines={("gates", 0): 7})

    assert len(digests | {_gates(plain, guard="pinned").digest}) == len(asked) + 1
    assert moved.digest == _gates(plain).digest
    assert moved.gates[0].line == 7
    assert moved.gates == _gates(plain).gates


@pytest.mark.parametrize(
    ("labels", "metric", "said"),
    [
        (("a", "b"), "roc_auc_ovr", "for more than two classes"),
        (("a", "b", "c"), "f1", "for two classes"),
        (("a", "b"), "recall[c]", "unknown class"),
        (("a", "b"), "mae", "belongs to regression"),
    ],
)
def test_a_gate_that_a_model_with_these_classes_has_not_is_named_with_its_place(labels, metric, said):
    gate = _gates({"metric": metric, "max": 0.5} if metric == "mae" else {"metric": metric, "min": 0.5}).gates

    with pytest.raises(UsageError, match=said) as refusal:
        check_task(gate, "classification", labels=labels)

    assert refusal.value.message.startswith("gates.toml")

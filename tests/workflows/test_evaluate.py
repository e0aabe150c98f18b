from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from linear_models import LABELS, classifier, colours, pack, regressor, write_rows

from mlx_platform.core.errors import (
    IntegrityError,
    NotFoundError,
    UnavailableError,
    UndecidedError,
    UsageError,
)
from mlx_platform.core.report import Matrix, Result, Table
from mlx_platform.core.settings import CacheSettings, EvaluationSettings, Settings
from mlx_platform.core.verdict import Verdict
from mlx_platform.registry.version import Lineage
from mlx_platform.workflows.context import Context, make_context
from mlx_platform.workflows.evaluate import evaluate

GOOD = 5 * np.eye(3)
ALMOST = GOOD + np.array([[0, 0.02, 0], [0, 0, 0], [0, 0, 0]])
BAD = GOOD + np.array([[0, 3, 0], [0, 0, 0], [0, 0, 0]])


@pytest.fixture(scope="module")
def registry(tmp_path_factory) -> Settings:
    """A registry whose `colours` has three versions: good and in production, nearly the same, and bad."""
    folder = tmp_path_factory.mktemp("registry")
    settings = Settings(folder=folder, actor="tester", cache=CacheSettings(dir=str(folder / "cache")))
    catalog = make_context(settings).catalog
    for name, weights in (("good", GOOD), ("almost", ALMOST), ("bad", BAD)):
        catalog.register("colours", pack(classifier(folder / name, weights)), Lineage())
    catalog.register("lengths", pack(regressor(folder / "lengths", np.ones((3, 1)))), Lineage())
    catalog.move("colours", "production", 1, expect=None, kind="promote", actor="tester", reason="")
    return settings


@pytest.fixture
def context(registry) -> Context:
    return make_context(registry)


@pytest.fixture
def rows(tmp_path) -> Callable[..., Path]:
    def write(count: int = 800, **columns: object) -> Path:
        features, codes = colours(count)
        columns = {"label": [LABELS[code] for code in codes]} | columns
        return write_rows(tmp_path / "rows.parquet", features, **columns)

    return write


def _verdicts(result: Result) -> dict[str, str]:
    return {gate["name"]: gate["verdict"] for gate in result.data["gates"]}


def test_a_model_is_measured_with_its_own_pipeline_and_labels(context, rows):
    result = evaluate(context, "colours/1", data=rows(), gate_expressions=("accuracy>=0.8",))

    features, codes = colours(800)
    accuracy = result.data["metrics"]["accuracy"]
    assert result.verdict is Verdict.PASS
    assert accuracy["value"] == pytest.approx((features.argmax(axis=1) == codes).mean())
    assert accuracy["lower"] < accuracy["value"] < accuracy["upper"]
    assert result.data["subject"]["version"] == 1
    assert result.data["dataset"]["rows"] == 800


def test_an_unreachable_limit_fails_with_the_measured_value(context, rows):
    result = evaluate(context, "colours/1", data=rows(), gate_expressions=("accuracy>=0.99", "log_loss<=9"))

    assert result.exit_code == 5
    assert _verdicts(result) == {"accuracy >= 0.99": "fail", "log_loss <= 9": "pass"}
    assert "1 of 2 gates failed: accuracy >= 0.99" in result.report.summary


def test_production_is_the_baseline_when_nobody_names_one(context, rows):
    better, worse = (evaluate(context, ref, data=rows()) for ref in ("colours/2", "colours/3"))

    assert _verdicts(better) == {"accuracy max_drop 1pp": "pass"}
    assert _verdicts(worse) == {"accuracy max_drop 1pp": "fail"}
    assert worse.data["comparison"]["against"]["ref"] == "colours/1"
    assert worse.data["comparison"]["lost"] > worse.data["comparison"]["won"]
    assert better.report.next_steps == ("mlx promote colours/2 --to production",)


def test_too_few_rows_leave_a_drop_open_and_say_how_many_would_decide(context, rows):
    result = evaluate(context, "colours/2", data=rows(60))

    assert result.exit_code == 7
    assert "would probably decide" in result.report.checks[0].message


def test_production_compared_with_itself_decides_nothing(context, rows):
    result = evaluate(context, "colours@production", data=rows(60))

    comparison = result.data["comparison"]
    assert result.verdict is Verdict.UNDECIDED
    assert (comparison["identical"], comparison["won"], comparison["lost"]) == (True, 0, 0)
    assert comparison["differences"]["accuracy"] | {"candidate": 0, "baseline": 0} == {
        "candidate": 0,
        "baseline": 0,
        "value": 0.0,
        "lower": None,
        "upper": None,
    }
    assert "was skipped because candidate and baseline are the same package" in result.report.summary


def test_without_a_gate_and_a_baseline_nothing_is_passed(context, rows):
    result = evaluate(context, "lengths/1", data=_lengths(rows))

    assert result.exit_code == 7
    assert result.data["gates"] == []
    assert result.data["metrics"]["rmse"]["value"] > 0
    assert "--gate" in result.report.next_steps[0]


def _lengths(rows: Callable[..., Path]) -> Path:
    features, _codes = colours(300)
    noise = np.random.default_rng(1).normal(0, 0.1, 300)
    return rows(300, label=features.sum(axis=1) + noise)


def test_regression_is_measured_and_compared_with_its_own_metrics(context, rows):
    result = evaluate(
        context,
        "lengths/1",
        data=_lengths(rows),
        against="lengths/1",
        gate_expressions=("rmse<=0.2", "rmse:max_rise=2%rel"),
    )

    assert result.verdict is Verdict.PASS
    assert result.data["metrics"]["rmse"]["value"] == pytest.approx(0.1, rel=0.2)
    assert any(isinstance(part, Table) and part.title == "Largest errors" for part in result.report.details)


def test_the_gates_of_the_settings_count_and_those_of_flags_come_on_top(registry, rows, tmp_path):
    (tmp_path / "gates.toml").write_text('version = 1\n[[gates]]\nmetric = "accuracy"\nmin = 0.1\n')
    settings = replace(registry, evaluation=EvaluationSettings(gates=str(tmp_path / "gates.toml")))
    context = make_context(settings)

    from_settings = evaluate(context, "colours/1", data=rows())
    from_flag = evaluate(context, "colours/1", data=rows(), gate_expressions=("accuracy>=0.2",))

    assert _verdicts(from_settings) == {"accuracy >= 0.1": "pass"}
    assert _verdicts(from_flag) == {"accuracy >= 0.1": "pass", "accuracy >= 0.2": "pass"}


def test_a_weaker_gate_file_does_not_judge_the_projects_gates_by_easier_rules(registry, rows, tmp_path):
    drop = '[[gates]]\nmetric = "accuracy"\nmax_drop = "1pp"\n'
    least = '[[gates]]\nmetric = "accuracy"\nmin = 0.01\n'
    (tmp_path / "gates.toml").write_text(f'version = 1\nbaseline = "missing"\n{drop}')
    (tmp_path / "weak.toml").write_text(
        f'version = 1\nbaseline = "none"\n[defaults]\non_missing = "skip"\n{least}'
    )
    settings = replace(registry, evaluation=EvaluationSettings(gates=str(tmp_path / "gates.toml")))

    result = evaluate(make_context(settings), "colours/1", data=rows(), gates=tmp_path / "weak.toml")

    assert _verdicts(result) == {"accuracy max_drop 1pp": "undecided", "accuracy >= 0.01": "pass"}
    assert result.verdict is Verdict.UNDECIDED


def test_a_weaker_gate_file_does_not_take_the_projects_gates_away(registry, rows, tmp_path):
    (tmp_path / "gates.toml").write_text('version = 1\n[[gates]]\nmetric = "accuracy"\nmin = 1.0\n')
    (tmp_path / "weak.toml").write_text('version = 1\n[[gates]]\nmetric = "accuracy"\nmin = 0.01\n')
    settings = replace(registry, evaluation=EvaluationSettings(gates=str(tmp_path / "gates.toml")))

    result = evaluate(make_context(settings), "colours/1", data=rows(), gates=tmp_path / "weak.toml")

    assert _verdicts(result) == {"accuracy >= 1.0": "fail", "accuracy >= 0.01": "pass"}
    assert result.verdict is Verdict.FAIL


GATES = """
version: 1
baseline: {baseline}
dataset: {{label: colour, id: row, min_rows: {min_rows}}}
defaults: {{confidence: 0.9, on_missing: {on_missing}}}
gates:
  - {{metric: accuracy, max_drop: 2pp}}
  - {{metric: accuracy, min: 0.99, level: warn}}
"""


@pytest.mark.parametrize(
    ("ref", "baseline", "min_rows", "on_missing", "exit_code"),
    [
        ("colours/2", "production", 10, "undecided", 0),
        ("colours/2", "version:1", 10, "undecided", 0),
        ("colours/2", "pinned", 10, "undecided", 0),
        ("colours/3", "colours/1", 10, "undecided", 5),
        ("colours/2", "none", 10, "undecided", 7),
        ("colours/2", "staging", 10, "undecided", 7),
        ("colours/2", "staging", 10, "skip", 7),
        ("colours/2", "staging", 10, "error", 7),
        ("colours/2", "production", 10_000, "undecided", 7),
    ],
)
def test_a_gate_file_names_baseline_columns_and_least_rows(
    context, rows, tmp_path, ref, baseline, min_rows, on_missing, exit_code
):
    path = tmp_path / "gates.yaml"
    path.write_text(GATES.format(baseline=baseline, min_rows=min_rows, on_missing=on_missing))
    labels = [LABELS[code] for code in colours(800)[1]]

    result = evaluate(context, ref, data=rows(colour=labels, label=[None] * 800, row=range(800)), gates=path)

    assert result.exit_code == exit_code
    assert any("accuracy >= 0.99" in warning for warning in result.warnings)


def test_a_gate_file_without_gates_passes_nothing(context, rows, tmp_path):
    (tmp_path / "gates.toml").write_text("version = 1\n")

    result = evaluate(context, "colours/2", data=rows(), gates=tmp_path / "gates.toml")

    assert (result.exit_code, result.data["gates"]) == (7, [])
    assert result.data["comparison"]["against"]["ref"] == "colours/1"


def test_a_passed_evaluation_is_kept_with_the_version(context, rows):
    result = evaluate(context, "colours/2", data=rows(), gate_expressions=("accuracy>=0.8",))

    kept = context.catalog.evidence(context.catalog.resolve("colours/2"))["evaluation"]
    assert (kept.id, kept.verdict) == (result.data["evidence"], "pass")
    assert kept.digest == result.data["subject"]["digest"]
    assert kept.data_fingerprint == result.data["dataset"]["fingerprint"]
    assert kept.numbers["accuracy"]["value"] == result.data["metrics"]["accuracy"]["value"]


def test_the_latest_evaluation_counts_and_a_broken_one_leaves_nothing(context, rows):
    evaluate(context, "colours/2", data=rows(), gate_expressions=("accuracy>=0.8",))
    failed = evaluate(context, "colours/2", data=rows(), gate_expressions=("accuracy>=0.999",))
    with pytest.raises(UsageError):
        evaluate(context, "colours/2", data=rows(), against="lengths/1", gate_expressions=("accuracy>=0.1",))

    kept = context.catalog.evidence(context.catalog.resolve("colours/2"))["evaluation"]
    assert (kept.id, kept.verdict) == (failed.data["evidence"], "fail")


def test_an_unregistered_file_is_evaluated_without_evidence(context, rows, registry):
    result = evaluate(
        context, str(registry.folder / "bad-package"), data=rows(), gate_expressions=("accuracy>=0.1",)
    )

    assert result.verdict is Verdict.PASS
    assert result.data["evidence"] is None
    assert result.data["comparison"] is None
    assert result.report.next_steps[0].startswith("mlx register")


def test_the_report_shows_confusion_classes_and_the_surest_errors_by_id(context, rows, tmp_path):
    ids = [f"row-{number}" for number in range(800)]

    result = evaluate(context, "colours/3", data=rows(id=ids), report=tmp_path / "report")

    sections = {
        section.title.partition(",")[0].partition(" (")[0]: section for section in result.report.details
    }
    confusion, classes, errors = (sections[name] for name in ("Confusion", "Classes", "Surest errors"))
    assert isinstance(confusion, Matrix)
    assert sum(map(sum, confusion.values)) == 800
    assert {row[0] for row in classes.rows} == set(LABELS)
    confidences = [float(row[3]) for row in errors.rows]
    assert confidences == sorted(confidences, reverse=True)
    assert errors.rows[0][0].startswith("row-")
    assert orjson.loads((tmp_path / "report" / "report.json").read_bytes()) == orjson.loads(
        orjson.dumps(result.document())
    )
    junit = (tmp_path / "report" / "junit.xml").read_text()
    assert 'tests="1" failures="1"' in junit


def test_features_named_id_and_weight_stay_out_of_a_model_that_names_none(context, rows):
    data = _lengths(rows)
    plain = evaluate(context, "lengths/1", data=data, gate_expressions=("rmse<=0.2",))
    features, _codes = colours(300)
    truth = np.asarray(features.sum(axis=1))

    with_others = evaluate(
        context,
        "lengths/1",
        data=rows(300, label=truth, id=range(300), weight=np.ones(300)),
        gate_expressions=("rmse<=0.2",),
    )

    assert plain.verdict is with_others.verdict is Verdict.PASS


def test_repeated_ids_are_counted(context, rows):
    result = evaluate(context, "colours/1", data=rows(id=[1, *range(799)]))

    assert any("1 row repeat" in warning for warning in result.warnings)


def test_one_class_leaves_the_averages_undecided(context, rows):
    features, _codes = colours(400)
    expressions = ("f1_macro>=0", "accuracy>=0")

    result = evaluate(
        context, "colours/1", data=rows(400, label=["red"] * len(features)), gate_expressions=expressions
    )

    assert result.exit_code == 7
    assert _verdicts(result) == {"f1_macro >= 0": "undecided", "accuracy >= 0": "pass"}
    assert result.data["metrics"]["f1_macro"]["value"] is None


def test_whole_numbers_are_labels_of_a_model_whose_labels_are_digits(context, tmp_path):
    source = classifier(tmp_path / "digits", GOOD, labels=("0", "1", "2"))
    features, codes = colours(300)
    data = write_rows(tmp_path / "rows.parquet", features, label=codes)

    result = evaluate(context, str(source), data=data, gate_expressions=("accuracy>=0.7",))

    assert result.verdict is Verdict.PASS


def test_models_whose_labels_come_in_another_order_are_compared_by_name(context, tmp_path, rows):
    turned = classifier(tmp_path / "turned", GOOD[:, [2, 0, 1]], labels=("blue", "red", "green"))

    result = evaluate(
        context, "colours/1", data=rows(), against=str(turned), gate_expressions=("accuracy:max_drop=1pp",)
    )

    assert (result.data["comparison"]["agreement"], result.verdict) == (1.0, Verdict.PASS)
    assert result.data["comparison"]["differences"]["log_loss"]["value"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"label": ["red", "pink"] * 400}, "rows.parquet, row 1: column 'label' holds the label 'pink'"),
        ({"label": [None, "red"] * 400}, "rows.parquet, row 0: column 'label' has no label"),
        ({"x1": ["a"] * 800}, "x1"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(context, rows, columns, said):
    with pytest.raises(UsageError) as refusal:
        evaluate(context, "colours/1", data=rows(**columns))

    assert said in refusal.value.message


def test_a_missing_label_column_is_answered_with_the_columns_there_are(context, rows):
    with pytest.raises(UsageError, match="no column 'lable'") as refusal:
        evaluate(context, "colours/1", data=rows(), label="lable")

    assert "'label'" in refusal.value.hint


def test_a_metric_of_another_task_is_refused_before_anything_runs(context, rows):
    with pytest.raises(UsageError, match="belongs to regression"):
        evaluate(context, "colours/1", data=rows(), gate_expressions=("rmse<=1",))


def test_limits_that_contradict_each_other_across_places_are_refused(context, rows, tmp_path):
    (tmp_path / "gates.toml").write_text('version = 1\n[[gates]]\nmetric = "accuracy"\nmin = 0.9\n')

    with pytest.raises(UsageError, match=r"at least 0.9 and at most 0.8"):
        evaluate(
            context,
            "colours/1",
            data=rows(),
            gates=tmp_path / "gates.toml",
            gate_expressions=("accuracy<=0.8",),
        )


def test_a_baseline_that_cannot_answer_the_rows_is_named(context, rows, tmp_path):
    narrow = classifier(tmp_path / "narrow", np.ones((4, 3)))

    with pytest.raises(UsageError, match=r"no column 'x3', which the baseline .*narrow takes"):
        evaluate(context, "colours/1", data=rows(), against=str(narrow))


def test_data_that_are_not_the_named_ones_break_the_run(context, rows, tmp_path):
    (tmp_path / "gates.toml").write_text(f'version = 1\n[dataset]\nsha256 = "{"0" * 64}"\n')

    with pytest.raises(IntegrityError, match="not the data"):
        evaluate(context, "colours/1", data=rows(), gates=tmp_path / "gates.toml")


def test_what_is_not_there_is_not_found_and_what_is_empty_is_undecided(context, rows, tmp_path):
    with pytest.raises(NotFoundError):
        evaluate(context, "colours/9", data=rows())
    with pytest.raises(NotFoundError):
        evaluate(context, "colours/1", data=rows(), against="colours@staging")
    with pytest.raises(UndecidedError):
        evaluate(context, "colours/1", data=rows(0))


def test_a_model_without_a_known_task_cannot_be_evaluated(context, rows, tmp_path):
    source = regressor(tmp_path / "raw", np.ones((3, 2)))
    (source / "model.toml").write_text('format = 1\ntask = "tensors"\n')

    with pytest.raises(UndecidedError, match="cannot be evaluated"):
        evaluate(context, str(source), data=rows())


def test_the_command_line_gives_one_document_and_the_exit_code(mlx, registry, rows):
    arguments = ("eval", registry.folder / "bad-package", "--data", rows(), "--gate", "accuracy>=0.99")

    outcome = mlx(*arguments, "--json")

    assert (outcome.code, outcome.document["verdict"]) == (5, "fail")
    assert outcome.data["gates"][0]["threshold"] == 0.99
    assert outcome.data["evidence"] is None


def test_easier_data_of_a_weaker_gate_file_does_not_count(registry, rows, tmp_path):
    least = '[[gates]]\nmetric = "accuracy"\nmin = 0.01\n'
    (tmp_path / "gates.toml").write_text(f"version = 1\n[dataset]\nmin_rows = 10_000\n{least}")
    (tmp_path / "weak.toml").write_text(f"version = 1\n[dataset]\nmin_rows = 1\n{least}")
    settings = replace(registry, evaluation=EvaluationSettings(gates=str(tmp_path / "gates.toml")))

    result = evaluate(make_context(settings), "colours/1", data=rows(), gates=tmp_path / "weak.toml")

    assert result.verdict is Verdict.UNDECIDED


def test_evidence_says_by_which_rules_and_against_what_it_was_judged(registry, rows, tmp_path):
    (tmp_path / "gates.toml").write_text(
        'version = 1\n[[gates]]\nmetric = "accuracy"\nmin = 0.1\nmax_drop = "2pp"\n'
    )
    settings = replace(registry, evaluation=EvaluationSettings(gates=str(tmp_path / "gates.toml")))
    context = make_context(settings)

    evaluate(context, "colours/2", data=rows())

    kept = context.catalog.evidence(context.catalog.resolve("colours/2"))["evaluation"]
    assert kept.judged["against"] == context.catalog.resolve("colours/1").digest
    assert (kept.judged["against_ref"], kept.judged["compared"]) == ("colours/1", True)
    assert len(kept.judged["gate_file"]) == 16
    assert [gate["name"] for gate in kept.gates] == ["accuracy >= 0.1", "accuracy max_drop 2pp"]
    assert kept.gates[0]["threshold"] == 0.1
    assert kept.gates[0]["measured"] > 0.1


@pytest.mark.parametrize(("limit", "code"), [("accuracy>=0.1", 9), ("accuracy>=0.999", 5)])
def test_a_registry_that_keeps_nothing_takes_no_report_and_hides_no_verdict(
    context, rows, tmp_path, monkeypatch, limit, code
):
    def refuse(*_arguments):
        raise UnavailableError("The registry is full.")

    monkeypatch.setattr(context.catalog, "record", refuse)
    result = evaluate(
        context, "colours/1", data=rows(), gate_expressions=(limit,), junit=tmp_path / "junit.xml"
    )

    assert (result.exit_code, result.data["evidence"]) == (code, None)
    assert "was not kept with colours/1: The registry is full." in result.warnings[-1]
    assert "threshold &gt;=" in (tmp_path / "junit.xml").read_text()


def test_a_report_that_cannot_be_written_hides_no_verdict_and_a_place_for_none_is_refused(
    context, rows, tmp_path
):
    (tmp_path / "file").write_text("")
    good, bad = (
        evaluate(
            context,
            "colours/1",
            data=rows(),
            gate_expressions=(limit,),
            junit=tmp_path / "file" / "junit.xml",
        )
        for limit in ("accuracy>=0.1", "accuracy>=0.999")
    )

    assert (good.verdict, good.exit_code, bad.exit_code) == (Verdict.PASS, 2, 5)
    assert "Cannot write" in good.warnings[-1]
    assert good.data["evidence"]
    with pytest.raises(UsageError, match="takes a folder"):
        evaluate(context, "colours/1", data=rows(), report=tmp_path / "file")

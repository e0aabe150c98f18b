"""Slices, guards, looks and copies, from a gate file to what the registry keeps."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from linear_models import LABELS, classifier, colours, pack, regressor, write_rows

from mlx_platform.core.errors import IntegrityError, NotFoundError, UsageError
from mlx_platform.core.report import Result
from mlx_platform.core.settings import CacheSettings, Settings, load_settings
from mlx_platform.core.verdict import Verdict
from mlx_platform.evaluation.gates import DatasetRules
from mlx_platform.registry.version import Lineage, evidence_of
from mlx_platform.workflows.context import Context, make_context
from mlx_platform.workflows.evaluate import evaluate
from mlx_platform.workflows.judgement import judge_version

GOOD = 5 * np.eye(3)
STEPS = {"first": 0.0, "second": 0.9, "third": 1.8, "fourth": 2.5}


def _tilted(amount: float) -> np.ndarray:
    """Weights that say green a little too often."""
    return GOOD + np.array([[0, amount, 0], [0, 0, 0], [0, 0, 0]])


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Settings:
    """A registry whose production moved on to versions that are a little worse each time."""
    folder = tmp_path_factory.mktemp("registry")
    settings = Settings(folder=folder, actor="tester", cache=CacheSettings(dir=str(folder / "cache")))
    catalog = make_context(settings).catalog
    for name, amount in STEPS.items():
        catalog.register("colours", pack(classifier(folder / name, _tilted(amount))), Lineage())
    catalog.register("lengths", pack(regressor(folder / "lengths", np.ones((3, 1)))), Lineage())
    held: int | None = None
    for number in (1, 2, 3):
        catalog.move("colours", "production", number, expect=held, kind="promote", actor="tester", reason="")
        held = number
    return settings


@pytest.fixture
def context(filled) -> Context:
    return make_context(filled)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Rows of three languages on two devices, of which French ones are labelled wrongly more often."""
    features, codes = colours(3000)
    generator = np.random.default_rng(1)
    language = generator.choice(["de", "en", "fr", "xx"], 3000, p=[0.4, 0.35, 0.24, 0.01])
    wrong = (language == "fr") & (generator.random(3000) < 0.3)
    label = [LABELS[code] for code in np.where(wrong, (codes + 1) % 3, codes)]
    device = generator.choice(["phone", "desk"], 3000)
    path = tmp_path_factory.mktemp("data") / "rows.parquet"
    return write_rows(path, features, label=label, lang=language, device=device, user=np.arange(3000) // 3)


@pytest.fixture
def gates(tmp_path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "gates.toml"
        path.write_text("version = 1\n" + text)
        return path

    return write


def _gate(result: Result, name: str) -> dict[str, object]:
    return next(gate for gate in result.data["gates"] if gate["name"] == name)


SLICED = """[[gates]]
metric = "accuracy"
min = 0.8
slices = {by = ["lang", ["lang", "device"]], min_rows = 50}
"""


def test_a_gate_over_slices_fails_and_says_which(context, data, gates):
    result = evaluate(context, "colours/1", data=data, gates=gates(SLICED))

    gate = _gate(result, "accuracy >= 0.8 by lang, lang+device")
    assert result.exit_code == 5
    assert set(gate["slices"]["failed"]) == {"lang=fr", "lang=fr, device=phone", "lang=fr, device=desk"}
    assert gate["slices"]["judged"] == 9
    assert "lang=xx" in gate["slices"]["left_out"]
    assert (gate["line"], gate["threshold"]) == (4, 0.8)
    assert gate["measured"] < 0.75


def test_a_slice_that_the_file_names_and_the_data_lack_is_undecided(context, data, gates):
    asked = SLICED.replace("min = 0.8", "min = 0.1").replace("50}", '50, require = [{lang = "it"}]}')

    result = evaluate(context, "colours/1", data=data, gates=gates(asked))

    assert result.verdict is Verdict.UNDECIDED
    assert result.data["gates"][0]["slices"]["undecided"] == ["lang=it"]


def test_drops_are_judged_in_slices_with_the_paired_test(context, data, gates):
    asked = '[[gates]]\nmetric = "accuracy"\nmax_drop = "8pp"\nslices = {by = ["device"]}\n'

    result = evaluate(context, "colours/4", data=data, gates=gates(asked), against="colours/1")

    gate = _gate(result, "accuracy max_drop 8pp by device")
    assert gate["verdict"] == "pass"
    assert gate["slices"]["passed"] == 2
    assert gate["threshold"] == pytest.approx(-0.08)


def test_slices_that_nobody_gates_are_shown(context, data):
    result = evaluate(
        context,
        "colours/1",
        data=data,
        slices=("lang,device", "lang"),
        gate_expressions=("accuracy>=0.1",),
    )

    shown = {one["name"] if "name" in one else str(one["key"]): one for one in result.data["slices"]}
    assert result.verdict is Verdict.PASS
    assert len(shown) == 4 + 8
    assert any("fr" in name for name in shown)


@pytest.mark.parametrize("text", ["", "lang,", "lang,lang"])
def test_slices_without_a_column_are_refused(context, data, text):
    with pytest.raises(UsageError, match="--slice"):
        evaluate(context, "colours/1", data=data, slices=(text,))


def test_a_slice_column_that_is_not_there_is_named(context, data, gates):
    with pytest.raises(UsageError, match="'land'") as refusal:
        evaluate(context, "colours/1", data=data, gates=gates(SLICED.replace('"lang"', '"land"')))

    assert "'lang'" in refusal.value.hint


GUARDED = """[[gates]]
metric = "accuracy"
max_drop = "3pp"
guard = {max_drop = "3.5pp"}
"""


def test_small_drops_that_add_up_are_caught_by_the_guard(context, data, gates):
    result = evaluate(context, "colours/4", data=data, gates=gates(GUARDED))

    step = _gate(result, "accuracy max_drop 3pp")
    total = _gate(result, "accuracy max_drop 3.5pp against pinned")
    assert result.data["comparison"]["against"]["ref"] == "colours/3"
    assert step["baseline"] < total["baseline"]
    assert total["measured"] < step["measured"] < 0
    assert step["verdict"] == "pass"
    assert total["verdict"] != "pass"


def test_a_guard_for_the_whole_file_warns_only(context, data, gates):
    asked = 'guard = "pinned"\n[[gates]]\nmetric = "accuracy"\nmax_drop = "3pp"\n'

    result = evaluate(context, "colours/4", data=data, gates=gates(asked))

    warned = _gate(result, "accuracy max_drop 3pp against pinned")
    assert result.verdict is Verdict.PASS
    assert (warned["level"], warned["verdict"]) == ("warn", "fail")
    assert any("against pinned" in text for text in result.warnings)


def test_the_first_version_is_no_guard_of_itself(context, data, gates):
    result = evaluate(context, "colours/1", data=data, gates=gates(GUARDED))

    assert "same package" in _gate(result, "accuracy max_drop 3.5pp against pinned")["skipped"]


def test_a_guard_that_nobody_is_yet_leaves_its_gate_undecided(context, gates, tmp_path):
    features, _codes = colours(300)
    rows = write_rows(tmp_path / "lengths.parquet", features, label=features.sum(axis=1) + 0.1)
    asked = '[[gates]]\nmetric = "rmse"\nmax_rise = "5%rel"\nguard = {max_rise = "9%rel"}\n'

    result = evaluate(context, "lengths/1", data=rows, gates=gates(asked))

    assert result.verdict is Verdict.UNDECIDED
    assert {gate["verdict"] for gate in result.data["gates"]} == {"undecided"}


def test_evidence_tells_what_was_guarded_and_binds_to_the_gates(context, data, gates):
    evaluate(context, "colours/4", data=data, gates=gates(GUARDED))
    first = evidence_of(context.catalog.resolve("colours/4"))["evaluation"].judged
    evaluate(context, "colours/4", data=data, gates=gates(GUARDED.replace("3.5pp", "3.6pp")))
    second = evidence_of(context.catalog.resolve("colours/4"))["evaluation"].judged
    evaluate(context, "colours/4", data=data, gates=gates(GUARDED + "slices = {by = ['lang']}\n"))
    third = evidence_of(context.catalog.resolve("colours/4"))["evaluation"].judged

    assert len({one["gate_file"] for one in (first, second, third)}) == 3
    assert first["compared"] is True


def test_looks_are_counted_across_runs_and_versions_and_warned_about(context, data):
    asked = {"data": data, "gate_expressions": ("accuracy>=0.123",), "against": "colours/1"}

    found = [evaluate(context, ref, **asked) for ref in ("colours/2", "colours/3", "colours/4")]
    other = evaluate(context, "colours/4", **asked | {"gate_expressions": ("accuracy>=0.124",)})

    assert [result.data["looks"]["count"] for result in found] == [1, 2, 3]
    assert found[-1].data["looks"]["versions"] == 3
    assert [any("look 3" in text for text in result.warnings) for result in found] == [False, False, True]
    assert other.data["looks"]["count"] == 1


def test_gates_may_be_in_the_settings_themselves(filled, data, tmp_path):
    text = f"""[registry]
uri = "sqlite:///{filled.folder}/mlx.db"
artifacts = "{filled.folder}/mlx-artifacts"
[cache]
dir = "{filled.folder}/cache"
[evaluation]
guard = "pinned"
[[evaluation.gate]]
metric = "accuracy"
min = 0.99
"""
    (tmp_path / "mlx.toml").write_text(text)
    context = make_context(load_settings(tmp_path / "mlx.toml", {}))

    result = evaluate(context, "colours/1", data=data)

    assert result.exit_code == 5
    assert result.data["gates"][0]["line"] == text.splitlines().index("min = 0.99") + 1
    check = result.report.checks[0]
    assert check.file.endswith("mlx.toml")

    (tmp_path / "mlx.toml").write_text(text.replace("min = 0.99", "mim = 0.99"))
    with pytest.raises(UsageError, match=r"mlx.toml, line 10, gate 1: unknown key 'mim'"):
        evaluate(make_context(load_settings(tmp_path / "mlx.toml", {})), "colours/1", data=data)

    (tmp_path / "mlx.toml").write_text(text.replace("[evaluation]", '[evaluation]\ngates = "gates.toml"'))
    with pytest.raises(UsageError, match="names a gate file and has gate, guard"):
        evaluate(make_context(load_settings(tmp_path / "mlx.toml", {})), "colours/1", data=data)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("rmse<=3", "belongs to regression"),
        ("ndcg@10>=0.3", "belongs to ranking"),
        ("roc_auc>=0.8", "for two classes, and this model has 3"),
        ("recall[pink]>=0.8", "unknown class"),
        ("acuracy>=0.8", "no metric 'acuracy'"),
    ],
)
def test_a_gate_on_a_metric_that_the_task_has_not_is_refused_before_anything_is_measured(
    context, expression, said
):
    with pytest.raises(UsageError) as refusal:
        evaluate(context, "colours/1", data=Path("not-even-read.parquet"), gate_expressions=(expression,))

    assert said in refusal.value.message
    assert expression.partition(">")[0].partition("<")[0] in refusal.value.message


def test_gates_that_contradict_each_other_are_named_with_their_lines(context, data, gates):
    path = gates('[[gates]]\nmetric = "accuracy"\nmin = 0.9\n\n[[gates]]\nmetric = "accuracy"\nmax = 0.8\n')

    with pytest.raises(UsageError) as refusal:
        evaluate(context, "colours/1", data=data, gates=path)

    assert f"{path}, line 4 and 8: accuracy cannot be at least 0.9 and at most 0.8" in refusal.value.message


def test_a_baseline_that_cannot_be_loaded_is_named_and_nothing_is_kept(filled, data, tmp_path):
    context = make_context(replace(filled, cache=CacheSettings(dir=str(tmp_path / "cache"))))
    version = context.catalog.resolve("colours@production")
    kept = (filled.folder / "mlx-artifacts").rglob("model.onnx")
    broken = next(path for path in kept if _is_of(path, version.digest))
    content = broken.read_bytes()
    before = evidence_of(context.catalog.resolve("colours/4"))
    try:
        broken.write_bytes(b"damaged")
        with pytest.raises(IntegrityError, match="The baseline colours@production cannot be loaded"):
            evaluate(context, "colours/4", data=data)
    finally:
        broken.write_bytes(content)
    with pytest.raises(NotFoundError, match="The baseline colours/99 cannot be loaded"):
        evaluate(context, "colours/4", data=data, against="colours/99")

    assert evidence_of(context.catalog.resolve("colours/4")) == before


def _is_of(path: Path, digest: str) -> bool:
    manifest = path.with_name("manifest.json")
    return manifest.is_file() and hashlib.sha256(manifest.read_bytes()).hexdigest() == digest


def test_a_file_without_gates_decides_nothing(context, data, gates):
    result = evaluate(context, "colours/2", data=data, gates=gates("gates = []\n"))

    assert (result.exit_code, result.data["gates"]) == (7, [])


def test_weights_and_groups_change_the_test_but_not_the_rows(context, data):
    asked = {"data": data, "against": "colours/1", "gate_expressions": ("accuracy:max_drop=2pp",)}

    plain = evaluate(context, "colours/4", **asked)
    grouped = evaluate(context, "colours/4", **asked, columns=DatasetRules(group="user"))
    weighted = evaluate(context, "colours/4", **asked, columns=DatasetRules(weight="user"))

    values = [result.data["metrics"]["accuracy"]["value"] for result in (plain, grouped, weighted)]
    bounds = [result.data["gates"][0]["lower"] for result in (plain, grouped, weighted)]
    assert values[0] == values[1] != values[2]
    assert len(set(bounds)) == 3


def test_copies_that_are_equally_good_fail_no_more_often_than_the_level(context, data, monkeypatch):
    monkeypatch.setattr("mlx_platform.workflows.evaluation.selftest.COPIES", 60)
    before = evidence_of(context.catalog.resolve("colours/4"))

    result = evaluate(
        context,
        "colours/4",
        data=data,
        gate_expressions=("accuracy:max_drop=0.5pp", "accuracy>=0.78"),
        aa=True,
    )

    drop, limit = result.data["aa"]["gates"]
    assert result.verdict is Verdict.PASS
    assert drop["fail"] <= 0.1
    assert drop["level"] == pytest.approx(0.05)
    assert 0 < limit["fail"] < 1  # the accuracy is near the limit
    assert limit["level"] is None
    assert result.data["aa"]["exchanged_with"] == "colours/3"
    assert evidence_of(context.catalog.resolve("colours/4")) == before


def test_copies_without_gates_decide_nothing(context, data, gates):
    result = evaluate(context, "colours/1", data=data, gates=gates("gates = []\n"), aa=True)

    assert result.exit_code == 7
    assert result.data["aa"]["false_fail_rate"] is None


def test_rows_that_may_count_twice_are_never_a_pass(context, tmp_path):
    features, codes = colours(60)
    label = [LABELS[code] for code in codes]
    path = write_rows(tmp_path / "rows.parquet", features, label=label, id=[*range(59), 0])

    result = evaluate(context, "colours/1", data=path, gate_expressions=("accuracy>=0.1",))

    assert result.verdict is Verdict.UNDECIDED
    assert [check.name for check in result.report.checks] == ["accuracy", "ids"]
    assert "1 row repeats an id of the column 'id', first '0'." in result.warnings


def test_evidence_counts_for_the_gates_of_the_settings_as_they_are_now(filled, data):
    def settings(**changes: object) -> Settings:
        gate = {"metric": "accuracy", "min": 0.1} | changes
        return replace(filled, evaluation=replace(filled.evaluation, gate=(gate,)))

    context = make_context(settings())
    evaluate(context, "colours/2", data=data)
    asked = {
        "as they were": settings(),
        "stricter": settings(min=0.2),
        "in slices": settings(slices={"by": "lang"}),
        "gone": filled,
    }

    found = {}
    for name, now in asked.items():
        again = make_context(now)
        judgement = judge_version(again, again.catalog.resolve("colours/2"), "production", 3)
        found[name] = next(one for one in judgement.requirements if one.name == "evaluation").check.verdict

    assert found == {
        "as they were": Verdict.PASS,
        "stricter": Verdict.UNDECIDED,
        "in slices": Verdict.UNDECIDED,
        "gone": Verdict.PASS,
    }

"""`mlx drift` from a log, a file, or two files: what is compared, and what cannot be."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linear_models import classifier, colours, pack, write_rows
from logged import answered, named, with_baseline, write_segment
from projects import write_network

from mlx_platform.core.errors import NotFoundError, UndecidedError, UsageError
from mlx_platform.core.settings import CacheSettings, DriftSettings, Settings
from mlx_platform.core.verdict import Verdict
from mlx_platform.drift.profile import build_profile
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import Package
from mlx_platform.traffic import seal
from mlx_platform.traffic.record import Record
from mlx_platform.workflows.context import Context, make_context
from mlx_platform.workflows.drift import measure_drift

BASELINE, _ = colours(3000, seed=1)
TRAFFIC, _ = colours(900, seed=2)
MOVED = TRAFFIC + np.array([0, 1, 0], dtype=np.float32)
Change = Callable[[Record], Record]
WriteLog = Callable[..., Path]


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Package:
    return pack(classifier(tmp_path_factory.mktemp("bare") / "one", 5 * np.eye(3)))


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Package:
    package = pack(classifier(tmp_path_factory.mktemp("models") / "one", 5 * np.eye(3)))
    return with_baseline(package, named(BASELINE))


@pytest.fixture(scope="module")
def model(package) -> Model:
    return Model.load(package, name=package.root.name, device="cpu")


@pytest.fixture
def context(tmp_path) -> Context:
    return make_context(Settings(folder=tmp_path, cache=CacheSettings(dir=str(tmp_path / "cache"))))


@pytest.fixture
def log(tmp_path, model) -> WriteLog:
    """Write a log of requests of three rows; `change` alters every record."""

    def write(rows: np.ndarray = TRAFFIC, endpoint: str = "predict", change: Change | None = None) -> Path:
        records = [
            answered(model, named(rows[start : start + 3]), start // 3, endpoint)
            for start in range(0, len(rows), 3)
        ]
        return write_segment(tmp_path / "traffic", [change(each) if change else each for each in records])

    return write


def by_name(data: Any) -> dict[str, dict[str, Any]]:
    return {feature["name"]: feature for feature in data["features"]}


@pytest.mark.parametrize("endpoint", ["predict", "infer"])
def test_traffic_like_the_baseline_passes_on_both_endpoints(context, package, log, endpoint):
    result = measure_drift(context, str(package.root), traffic=log(endpoint=endpoint))

    assert result.verdict is Verdict.PASS
    assert set(by_name(result.data)) == {"x0", "x1", "x2", "label", "confidence", "entropy", "margin"}
    assert {feature["rows"]["window"] for feature in result.data["features"]} == {900}
    assert result.data["window"]["records"] == 300
    assert result.data["window"]["share_usable"] == 1.0
    assert result.warnings == ()


@pytest.mark.parametrize("endpoint", ["predict", "infer"])
def test_a_moved_feature_fails_and_comes_first(context, package, log, endpoint, tmp_path):
    result = measure_drift(
        context,
        str(package.root),
        traffic=log(MOVED, endpoint),
        report=tmp_path / "report",
        junit=tmp_path / "j.xml",
    )

    found = by_name(result.data)
    assert result.verdict is Verdict.FAIL
    assert result.exit_code == 5
    assert result.data["features"][0]["name"] == "x1"
    assert found["x1"]["verdict"] == "drift"
    assert found["x1"]["psi"] == pytest.approx(0.93, abs=0.25)
    assert found["x1"]["psi_adjusted"] < found["x1"]["psi"]
    assert found["x0"]["verdict"] == found["x2"]["verdict"] == "ok"
    assert found["label"]["verdict"] in {"warn", "drift"}  # more of them are green now
    assert result.data["verdict_counts"]["drift"] >= 1
    assert "x1 (PSI" in result.report.summary
    assert (tmp_path / "report" / "report.html").exists()
    assert 'name="x1 ' in (tmp_path / "j.xml").read_text()
    json.dumps(result.document(), allow_nan=False)


def test_the_document_has_what_scripts_rely_on(context, package, log):
    feature = measure_drift(context, str(package.root), traffic=log()).data["features"][0]

    for key in ("psi", "kl", "kl_reverse", "js_distance", "js_distance_bits", "psi_adjusted", "p_value"):
        assert isinstance(feature[key], float)
    assert feature["kind"] in {"numeric", "categorical"}
    assert set(feature["missing_rate"]) == {"baseline", "window"}
    assert isinstance(feature["significant"], bool)
    assert feature["new_categories"] == []
    assert feature["contributions"][0].keys() == {"bin", "baseline", "window", "psi"}


def test_the_window_is_half_open_in_time(context, package, log):
    traffic = log()

    result = measure_drift(
        context,
        str(package.root),
        traffic=traffic,
        since="2026-03-08T12:00:10Z",
        until="2026-03-08T13:03:20+01:00",
    )

    assert result.data["window"]["records"] == 190
    assert result.data["window"]["since"] == "2026-03-08T12:00:10Z"
    assert result.data["window"]["until"] == "2026-03-08T12:03:20Z"
    assert result.data["window"]["last"] == "2026-03-08T12:03:19Z"


@pytest.mark.parametrize("since", ["2026-03-09T00:00:00Z", None])
def test_an_empty_window_is_undecided_and_never_a_pass(context, package, log, tmp_path, since):
    folder = log() if since else tmp_path / "nobody-wrote-yet"
    folder.mkdir(exist_ok=True)

    result = measure_drift(context, str(package.root), traffic=folder, since=since, junit=tmp_path / "j.xml")

    assert (result.verdict, result.exit_code) == (Verdict.UNDECIDED, 7)
    assert result.data["features"] == []
    assert result.data["window"]["rows"] == 0
    assert (tmp_path / "j.xml").exists()


def test_a_handful_of_rows_is_undecided(context, package, log):
    result = measure_drift(context, str(package.root), traffic=log(TRAFFIC[:9]))

    assert result.exit_code == 7
    assert result.data["verdict_counts"]["insufficient_data"] == 7


def test_a_handful_of_rows_far_away_is_drift(context, package, log):
    result = measure_drift(context, str(package.root), traffic=log(TRAFFIC[:9] + 20))

    assert result.exit_code == 5
    assert by_name(result.data)["x0"]["method"] == "ks"


def test_a_package_without_a_baseline_is_undecided_and_says_how_to_get_one(context, bare, log):
    with pytest.raises(UndecidedError) as caught:
        measure_drift(context, str(bare.root), traffic=log())

    assert "--baseline" in caught.value.hint


def test_records_that_are_no_rows_to_compare_are_left_out_and_counted(context, package, log):
    def change(record: Record) -> Record:
        match record.seq % 4:
            case 1:
                return replace(record, digest="other")
            case 2:
                return replace(record, status=422)
            case 3:
                return record.without_payload()
        return record

    result = measure_drift(context, str(package.root), traffic=log(change=change))

    window = result.data["window"]
    assert (window["other_digest"], window["failed"], window["truncated"]) == (75, 75, 75)
    assert window["rows"] == 225
    assert any("another package" in warning for warning in result.warnings)


def test_a_damaged_log_says_how_much_of_it_was_used(context, package, log, model):
    traffic = log()
    more = [answered(model, named(MOVED[at * 3 : at * 3 + 3]), 900 + at, "predict") for at in range(300)]
    write_segment(traffic, more)
    seal.recover(traffic)
    damaged = next(traffic.rglob("s-b-000900*.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:-100])

    result = measure_drift(context, str(package.root), traffic=traffic)

    assert result.data["window"]["quarantined"] == 1
    assert 0.3 < result.data["window"]["share_usable"] < 0.7
    assert any("readable" in warning for warning in result.warnings)


def test_a_changed_sampling_is_told(context, package, log):
    traffic = log(change=lambda record: replace(record, sampling=0.5 if record.seq % 2 else 1.0))

    assert any(
        "sampling" in warning
        for warning in measure_drift(context, str(package.root), traffic=traffic).warnings
    )


def test_a_plain_file_is_compared_by_its_input_columns(context, package, tmp_path):
    rows = write_rows(tmp_path / "today.parquet", MOVED, label=["green"] * 900, note=["x"] * 900)

    result = measure_drift(context, str(package.root), traffic=rows)

    assert result.verdict is Verdict.FAIL
    assert set(by_name(result.data)) == {"x0", "x1", "x2"}
    assert any("no answers" in warning for warning in result.warnings)


def test_a_plain_file_has_no_time_to_select_by(context, package, tmp_path):
    rows = write_rows(tmp_path / "today.parquet", TRAFFIC)

    with pytest.raises(UsageError, match="no time"):
        measure_drift(context, str(package.root), traffic=rows, since="24h")


def test_a_column_that_is_gone_is_an_error_and_the_others_are_judged(context, tmp_path):
    baseline = write_rows(tmp_path / "base.parquet", BASELINE)
    today = write_rows(tmp_path / "today.parquet", TRAFFIC[:, :2])

    result = measure_drift(context, baseline=baseline, traffic=today)

    assert (result.verdict, result.exit_code) == (Verdict.ERROR, 7)
    found = by_name(result.data)
    assert [found[name]["verdict"] for name in ("x0", "x1", "x2")] == ["ok", "ok", "error"]
    assert found["x2"]["psi"] is None


def test_two_files_or_a_stored_profile_need_no_version(context, tmp_path):
    baseline = write_rows(tmp_path / "base.parquet", BASELINE, id=list(range(3000)))
    profile = tmp_path / "profile.json"
    profile.write_bytes(build_profile(named(BASELINE)).to_json())
    today = write_rows(tmp_path / "today.parquet", MOVED, id=list(range(5000, 5900)))

    for source in (baseline, profile):
        result = measure_drift(context, baseline=source, traffic=today)
        assert result.verdict is Verdict.FAIL
        assert set(by_name(result.data)) == {"x0", "x1", "x2"}
        assert result.data["model"] is None


def test_a_log_of_one_version_needs_no_name_and_one_of_several_does(context, log, model, tmp_path):
    profile = tmp_path / "profile.json"
    profile.write_bytes(build_profile(named(BASELINE)).to_json())
    traffic = log()

    assert measure_drift(context, baseline=profile, traffic=traffic).verdict is Verdict.PASS

    other = replace(answered(model, named(TRAFFIC[:3]), 5000, "predict"), version="9")
    write_segment(traffic, [other])
    with pytest.raises(UsageError, match="several versions"):
        measure_drift(context, baseline=profile, traffic=traffic)


def test_reference_rows_can_stand_in_for_the_packages_baseline(context, bare, log, tmp_path):
    baseline = write_rows(tmp_path / "base.parquet", BASELINE, label=["red"] * 3000)
    traffic = log(change=lambda record: replace(record, model=bare.root.name, digest=bare.digest))

    result = measure_drift(context, str(bare.root), baseline=baseline, traffic=traffic)

    assert result.verdict is Verdict.PASS
    assert set(by_name(result.data)) == {"x0", "x1", "x2", "label", "confidence", "entropy", "margin"}


@pytest.mark.parametrize("endpoint", ["predict", "infer"])
def test_a_model_without_column_names_takes_them_from_the_baselines_file(context, tmp_path, endpoint):
    generator = np.random.default_rng(0)
    package = with_baseline(
        pack(write_network(tmp_path / "plain.onnx", 1.0)), named(generator.normal(size=(2000, 4)), "a b c d")
    )
    model = Model.load(package, name=package.root.stem, device="cpu")
    moved = generator.normal(size=(600, 4)) + np.array([0, 0, 2, 0])
    records = [
        answered(model, {"x": moved[start : start + 3].astype(np.float32)}, start, endpoint)
        for start in range(0, 600, 3)
    ]

    result = measure_drift(context, str(package.root), traffic=write_segment(tmp_path / "traffic", records))

    found = by_name(result.data)
    assert {name: found[name]["verdict"] for name in "abcd"} == {
        "a": "ok",
        "b": "ok",
        "c": "drift",
        "d": "ok",
    }


def test_warnings_fail_only_when_asked_to(context, package, log):
    traffic = log(TRAFFIC + np.array([0, 0.42, 0], dtype=np.float32))

    lenient = measure_drift(context, str(package.root), traffic=traffic)
    strict = measure_drift(context, str(package.root), traffic=traffic, fail_on="warn")

    assert by_name(lenient.data)["x1"]["verdict"] == "warn"
    assert (lenient.exit_code, strict.exit_code) == (0, 5)


def test_the_policy_of_the_settings_decides(package, log, tmp_path):
    settings = Settings(folder=tmp_path, drift=DriftSettings(policy="share", share=0.9))

    result = measure_drift(make_context(settings), str(package.root), traffic=log(MOVED))

    assert by_name(result.data)["x1"]["verdict"] == "drift"
    assert result.verdict is Verdict.PASS
    assert result.data["policy"]["policy"] == "share"


def test_flags_that_cannot_be_used_are_refused(context, package, log, tmp_path):
    ref, traffic = str(package.root), log()
    with pytest.raises(UsageError, match="nothing to compare"):
        measure_drift(context, traffic=traffic)
    with pytest.raises(UsageError, match="--fail-on"):
        measure_drift(context, ref, traffic=traffic, fail_on="never")
    with pytest.raises(UsageError, match="window is empty"):
        measure_drift(
            context, ref, traffic=traffic, since="2026-03-08T13:00:00Z", until="2026-03-08T12:00:00Z"
        )
    with pytest.raises(NotFoundError):
        measure_drift(context, ref, traffic=tmp_path / "nothing")
    with pytest.raises(NotFoundError):
        measure_drift(context, baseline=tmp_path / "nothing.json", traffic=traffic)
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(UsageError, match="no baseline profile"):
        measure_drift(context, baseline=tmp_path / "bad.json", traffic=traffic)


@pytest.mark.parametrize("endpoint", ["predict", "infer"])
def test_cells_that_no_server_would_write_stop_nothing(context, package, log, endpoint):
    odd = [
        {"datatype": "BYTES", "shape": [3], "data": ["a", None, {"b": 1}]},
        {"datatype": "FP64", "shape": [3, 2], "data": [0.5] * 6},
        {"datatype": "FP64", "shape": [3, 0], "data": []},
        {"datatype": "UINT8", "shape": [3], "data": [300, -1, 0]},
    ]

    def change(record: Record) -> Record:
        if record.seq >= 20:
            return record
        cells = odd[record.seq % len(odd)]
        outputs = dict.fromkeys(record.outputs, cells)
        return replace(record, inputs=dict.fromkeys(record.inputs, cells), outputs=outputs)

    result = measure_drift(context, str(package.root), traffic=log(endpoint=endpoint, change=change))

    assert result.data["window"]["records"] == 300
    assert {by_name(result.data)[name]["verdict"] for name in ("x0", "x1", "x2")} <= {"ok", "warn", "drift"}
    json.dumps(result.document(), allow_nan=False)

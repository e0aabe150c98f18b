"""`mlx drift` window by window, arm by arm, version by version, and against references."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from linear_models import classifier, colours, pack, write_rows
from logged import NOON, answered, named, with_baseline, write_hours, write_segment

from mlx_platform.core.errors import NotFoundError, UndecidedError, UsageError
from mlx_platform.core.settings import CacheSettings, Settings
from mlx_platform.core.verdict import Verdict
from mlx_platform.inference.model import Model
from mlx_platform.workflows.context import make_context
from mlx_platform.workflows.drift import measure_drift
from mlx_platform.workflows.drifting import window

ROWS, _ = colours(1800, seed=3)
MOVED = np.array([0, 1.5, 0], dtype=np.float32)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    package = pack(classifier(tmp_path_factory.mktemp("models") / "one", 5 * np.eye(3)))
    return with_baseline(package, named(colours(3000, seed=1)[0]))


@pytest.fixture(scope="module")
def model(package):
    return Model.load(package, name=package.root.name, device="cpu")


@pytest.fixture(scope="module")
def records(model):
    """600 requests of three rows, 18 seconds apart: three hours."""
    made = [answered(model, named(ROWS[at : at + 3]), at // 3, "predict") for at in range(0, len(ROWS), 3)]
    return [replace(each, time=NOON + timedelta(seconds=18 * each.seq)) for each in made]


@pytest.fixture(scope="module")
def moved(model):
    """The same requests with a feature that has moved."""
    rows = ROWS + MOVED
    made = [answered(model, named(rows[at : at + 3]), at // 3, "predict") for at in range(0, len(rows), 3)]
    return [replace(each, time=NOON + timedelta(seconds=18 * each.seq)) for each in made]


@pytest.fixture
def context(tmp_path):
    settings = Settings(folder=tmp_path, cache=CacheSettings(dir=str(tmp_path / "cache")))
    return make_context(settings, clock=lambda: NOON + timedelta(hours=4))


def psi_of(document, name="x1"):
    return next(each["psi"] for each in document["features"] if each["name"] == name)


def test_windows_are_judged_one_by_one_and_the_pooled_score_is_not_above_the_worst(
    context, package, records, moved, tmp_path
):
    traffic = write_segment(tmp_path / "traffic", records[:400] + moved[400:])
    result = measure_drift(context, str(package.root), traffic=traffic, every="1h")
    windows = result.data["windows"]
    assert [(each["since"], each["rows"]) for each in windows] == [
        ("2026-03-08T12:00:00Z", 600),
        ("2026-03-08T13:00:00Z", 600),
        ("2026-03-08T14:00:00Z", 600),
    ]
    assert [each["verdict"] for each in windows] == ["pass", "pass", "fail"]
    assert psi_of(windows[0]) < psi_of(result.data) <= psi_of(windows[2])
    assert result.data["latest"]["since"] == "2026-03-08T14:00:00Z"
    assert result.verdict is Verdict.FAIL


def test_the_newest_window_alarms_before_the_pooled_one_does(context, package, records, moved, tmp_path):
    traffic = write_segment(tmp_path / "traffic", records[:560] + moved[560:])
    whole = measure_drift(context, str(package.root), traffic=traffic)
    assert whole.verdict is not Verdict.FAIL
    by_window = measure_drift(context, str(package.root), traffic=traffic, every="15m")
    assert by_window.verdict is Verdict.FAIL


def test_a_window_that_is_not_over_yet_does_not_decide(context, package, records, moved, tmp_path):
    traffic = write_segment(tmp_path / "traffic", records[:560] + moved[560:])
    early = replace(context, clock=lambda: NOON + timedelta(hours=2, minutes=59))
    result = measure_drift(early, str(package.root), traffic=traffic, every="15m")
    assert result.data["latest"]["since"] == "2026-03-08T14:30:00Z"
    assert result.data["windows"][-1]["verdict"] == "fail"
    assert result.verdict is not Verdict.FAIL


def test_a_newest_window_with_few_rows_is_told_and_takes_nothing_back(context, package, records, tmp_path):
    traffic = write_segment(tmp_path / "traffic", records[:402])
    result = measure_drift(context, str(package.root), traffic=traffic, every="1h")
    assert result.data["windows"][-1]["verdict"] == "undecided"
    assert result.verdict is Verdict.PASS
    assert any("too few rows to be judged by itself" in warning for warning in result.warnings)


def test_days_of_a_zone_have_23_hours_when_its_clocks_go_forward(context, package, records, tmp_path):
    at = datetime(2026, 3, 8, 4, 59, 30, tzinfo=UTC)  # 23:59:30 in New York, the day before
    shifted = [replace(each, time=at + timedelta(minutes=2.4 * each.seq)) for each in records]
    traffic = write_segment(tmp_path / "traffic", shifted)
    zone = {"every": "1d", "zone": "America/New_York"}
    later = replace(context, clock=lambda: NOON + timedelta(days=2))
    windows = measure_drift(later, str(package.root), traffic=traffic, **zone).data["windows"]
    assert [(each["since"], each["until"]) for each in windows] == [
        ("2026-03-07T05:00:00Z", "2026-03-08T05:00:00Z"),
        ("2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"),
        ("2026-03-09T04:00:00Z", "2026-03-10T04:00:00Z"),
    ]
    assert windows[0]["rows"] == 3


def test_records_in_any_order_give_the_same_windows(context, package, records, tmp_path):
    order = np.random.default_rng(0).permutation(len(records))
    sorted_log = write_segment(tmp_path / "one", records)
    shuffled = write_segment(tmp_path / "other", [records[at] for at in order])
    found = [
        measure_drift(context, str(package.root), traffic=each, every="1h").data["windows"]
        for each in (sorted_log, shuffled)
    ]
    assert found[0] == found[1]


def test_records_from_the_future_are_left_out_and_counted(context, package, records, tmp_path):
    ahead = [replace(each, seq=5000 + each.seq, time=NOON + timedelta(days=400)) for each in records[:7]]
    traffic = write_segment(tmp_path / "traffic", records + ahead)
    result = measure_drift(context, str(package.root), traffic=traffic, every="1h")
    assert result.data["window"]["future"] == 7
    assert len(result.data["windows"]) == 3
    assert any("in the future" in warning for warning in result.warnings)


def test_arms_get_a_result_each_and_the_worst_decides(context, package, records, moved, tmp_path):
    canary = [replace(each, seq=5000 + each.seq, arm="canary") for each in moved]
    traffic = write_segment(tmp_path / "traffic", records + canary)
    result = measure_drift(context, str(package.root), traffic=traffic, by="arm")
    groups = {each["arm"]: each["verdict"] for each in result.data["groups"]}
    assert groups == {"canary": "fail", "production": "pass"}
    assert result.verdict is Verdict.FAIL
    alone = measure_drift(context, str(package.root), traffic=traffic, arm="production")
    assert alone.verdict is Verdict.PASS
    assert alone.data["window"]["other_arm"] == len(canary)


def test_without_a_choice_every_arm_of_the_version_counts(context, package, records, tmp_path):
    shadow = [replace(each, seq=5000 + each.seq, arm="shadow") for each in records[:9]]
    traffic = write_segment(tmp_path / "traffic", records + shadow)
    result = measure_drift(context, str(package.root), traffic=traffic)
    assert result.data["window"]["arms"] == {"production": 1800, "shadow": 27}


def test_versions_get_a_result_each_against_one_baseline(context, package, records, moved, tmp_path):
    other = [replace(each, version="8", digest="f" * 64, seq=5000 + each.seq) for each in moved]
    traffic = write_segment(tmp_path / "traffic", records)
    write_segment(traffic, other)
    result = measure_drift(context, str(package.root), traffic=traffic, by="version")
    groups = {each["version"]: each["verdict"] for each in result.data["groups"]}
    assert groups == {records[0].version: "pass", "8": "fail"}


def test_a_change_of_the_sampling_is_weighed_up(context, package, records, moved, tmp_path):
    """Of the requests that moved one in ten was logged, so they are more than they seem."""
    few = [replace(each, sampling=0.1) for each in moved[:60]]
    traffic = write_segment(tmp_path / "traffic", few + records[60:])
    weighed = measure_drift(context, str(package.root), traffic=traffic)
    equal = write_segment(tmp_path / "equal", moved[:60] + records[60:])
    assert psi_of(weighed.data) > 5 * psi_of(measure_drift(context, str(package.root), traffic=equal).data)
    assert weighed.data["window"]["rows"] == 1800
    assert weighed.data["window"]["effective_rows"] == round(3420**2 / (1620 + 180 * 100))


def test_a_sampling_that_is_no_share_makes_a_record_unreadable(context, package, records, tmp_path):
    traffic = write_segment(tmp_path / "traffic", [replace(records[0], sampling=0.0), *records[1:]])
    result = measure_drift(context, str(package.root), traffic=traffic)
    assert (result.data["window"]["unreadable"], result.data["window"]["rows"]) == (1, 1797)


def test_last_week_can_be_the_reference_on_the_bins_of_the_baseline(
    context, package, records, moved, tmp_path
):
    late = [replace(each, seq=5000 + each.seq, time=each.time + timedelta(hours=-48)) for each in moved]
    traffic = write_segment(tmp_path / "traffic", records)
    write_segment(traffic, late)
    spans = {"since": "2026-03-08T00:00Z", "baseline_until": "2026-03-08T00:00Z"}
    result = measure_drift(context, str(package.root), traffic=traffic, reference=traffic, **spans)
    assert result.verdict is Verdict.FAIL
    same = measure_drift(context, str(package.root), traffic=traffic, since="2026-03-08T00:00Z")
    assert same.verdict is Verdict.PASS
    assert result.data["baseline"]["id"] == same.data["baseline"]["id"]
    assert result.data["baseline"]["rows"] == 1800


def test_a_span_of_a_log_can_be_the_baseline_with_its_answers(context, records, moved, tmp_path):
    traffic = write_hours(tmp_path / "traffic", records[:300] + moved[300:])
    spans = {"baseline_until": "2026-03-08T13:30Z", "since": "2026-03-08T13:30Z"}
    result = measure_drift(context, None, traffic=traffic, baseline=traffic, **spans)
    assert {each["name"] for each in result.data["features"]} >= {"x0", "x1", "x2", "label", "confidence"}
    assert result.verdict is Verdict.FAIL


def test_features_computed_offline_are_compared_with_those_that_were_logged(
    context, package, records, tmp_path
):
    """Training/serving skew: the job that computed the rows for training used another unit."""
    traffic = write_segment(tmp_path / "traffic", records)
    honest = write_rows(tmp_path / "offline.parquet", ROWS)
    skewed = write_rows(tmp_path / "skewed.parquet", ROWS * np.array([1, 2.5, 1], dtype=np.float32))
    same = measure_drift(context, str(package.root), traffic=traffic, reference=honest)
    assert same.verdict is Verdict.PASS
    assert all(each["psi"] < 1e-3 for each in same.data["features"])
    result = measure_drift(context, str(package.root), traffic=traffic, reference=skewed)
    assert next(each["name"] for each in result.data["features"] if each["role"] == "input") == "x1"
    assert result.verdict is Verdict.FAIL


def test_a_reference_without_rows_is_undecided(context, package, records, tmp_path):
    traffic = write_segment(tmp_path / "traffic", records)
    with pytest.raises(UndecidedError, match="no rows"):
        measure_drift(
            context, str(package.root), traffic=traffic, reference=traffic, baseline_until="2020-01-01T00:00Z"
        )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"every": "5h"}, "do not fill a day"),
        ({"zone": "Europe/Berlin"}, "zone of windows"),
        ({"every": "1d", "zone": "Mars/Base"}, "no time zone"),
        ({"by": "colour"}, "arm or version"),
        ({"entity": "a"}, "names no entities"),
    ],
)
def test_flags_that_cut_nothing_are_refused(context, package, records, tmp_path, flags, message):
    traffic = write_segment(tmp_path / "traffic", records)
    with pytest.raises(UsageError, match=message):
        measure_drift(context, str(package.root), traffic=traffic, **flags)


def test_more_windows_than_anybody_looks_at_are_refused(context, package, records, tmp_path, monkeypatch):
    monkeypatch.setattr(window, "MOST_WINDOWS", 100)
    traffic = write_segment(tmp_path / "traffic", records)
    with pytest.raises(UsageError, match="more than 100 windows"):
        measure_drift(context, str(package.root), traffic=traffic, every="1m")


def test_a_plain_file_has_no_windows(context, package, tmp_path):
    rows = write_rows(tmp_path / "rows.parquet", ROWS)
    with pytest.raises(UsageError, match="no time"):
        measure_drift(context, str(package.root), traffic=rows, every="1h")


def test_nobody_of_that_name_is_not_found(context, package, tmp_path):
    log = tmp_path / "captured"
    log.mkdir()
    (log / "a.jsonl").write_text(
        '{"databricks_request_id":"1","request_time":"2026-03-08T12:00:00Z","status_code":200,'
        '"sampling_fraction":1.0,"request":"{\\"dataframe_split\\":{\\"columns\\":[\\"x0\\",\\"x1\\",\\"x2\\"],'
        '\\"data\\":[[0,1,0]]}}","response":"{\\"predictions\\":[0.5]}","served_entity_id":"colours-7"}\n'
    )
    with pytest.raises(NotFoundError, match="colours-8"):
        measure_drift(context, str(package.root), traffic=log, entity="colours-8")
    found = measure_drift(context, str(package.root), traffic=log, entity="colours-7")
    assert found.data["window"]["rows"] == 1


def test_with_a_log_for_a_baseline_the_time_and_the_size_of_requests_are_watched(
    context, package, records, tmp_path
):
    def timed(each, factor):
        return replace(each, timings_ms={"total": factor * (5 + each.seq % 7)})

    fast, slow = (timed(each, 1.0) for each in records[:300]), (timed(each, 9.0) for each in records[300:])
    traffic = write_hours(tmp_path / "traffic", [*fast, *slow])

    result = measure_drift(
        context,
        str(package.root),
        baseline=traffic,
        baseline_until="2026-03-08T13:30Z",
        traffic=traffic,
        since="2026-03-08T13:30Z",
    )

    verdicts = {each["name"]: each["verdict"] for each in result.data["features"]}
    assert verdicts["request.latency_ms"] == "drift"
    assert verdicts["request.rows"] == verdicts["x1"] == "ok"
    assert result.verdict is Verdict.FAIL

"""`mlx profile`: baselines and counts as files, added up and never counted twice."""

import json
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from linear_models import classifier, colours, pack, write_rows
from logged import NOON, answered, named, with_baseline, write_hours, write_segment

from mlx_platform.core.errors import ConflictError, UndecidedError, UsageError
from mlx_platform.core.settings import CacheSettings, Settings
from mlx_platform.drift.profile import Profile
from mlx_platform.drift.shard import Shard
from mlx_platform.inference.model import Model
from mlx_platform.workflows import profile
from mlx_platform.workflows.context import make_context
from mlx_platform.workflows.drift import measure_drift

ROWS, _ = colours(900, seed=3)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    package = pack(classifier(tmp_path_factory.mktemp("models") / "one", 5 * np.eye(3)))
    return with_baseline(package, named(colours(3000, seed=1)[0]))


@pytest.fixture(scope="module")
def records(package):
    """300 requests of three rows over three hours."""
    model = Model.load(package, name=package.root.name, device="cpu")
    made = [answered(model, named(ROWS[at : at + 3]), at // 3, "predict") for at in range(0, len(ROWS), 3)]
    return [replace(each, time=NOON + timedelta(seconds=36 * each.seq)) for each in made]


@pytest.fixture
def context(tmp_path):
    settings = Settings(folder=tmp_path, cache=CacheSettings(dir=str(tmp_path / "cache")))
    return make_context(settings, clock=lambda: NOON + timedelta(hours=4))


def scores(result):
    return {each["name"]: each["psi"] for each in result.data["features"]}


def test_a_profile_of_a_file_is_a_baseline_for_another_one(context, tmp_path):
    train = write_rows(tmp_path / "train.parquet", ROWS)
    out = tmp_path / "baseline.json"
    result = profile.build(context, train, out=out)
    assert result.data["rows"] == 900
    assert Profile.from_json(out.read_bytes()).baseline_id == result.data["baseline_id"]
    assert measure_drift(context, None, baseline=out, traffic=train).verdict == "pass"


def test_a_profile_of_a_log_has_the_answers_as_well(context, package, records, tmp_path):
    traffic = write_hours(tmp_path / "traffic", records)
    out = tmp_path / "baseline.json"
    result = profile.build(context, traffic, str(package.root), out=out, until="2026-03-08T14:00Z")
    assert result.data["rows"] == 600
    assert {each["name"] for each in result.data["features"] if each["role"] == "output"} == {
        "label",
        "confidence",
        "entropy",
        "margin",
        "request.rows",
    }
    later = measure_drift(
        context, str(package.root), baseline=out, traffic=traffic, since="2026-03-08T14:00Z"
    )
    assert later.verdict == "pass"


def test_kept_counts_give_the_answer_of_the_log(context, package, records, tmp_path):
    traffic, out = write_hours(tmp_path / "traffic", records), tmp_path / "counts.json"
    profile.count(context, str(package.root), traffic=traffic, out=out, every="1h")
    kept = measure_drift(context, str(package.root), traffic=out, every="1h")
    direct = measure_drift(context, str(package.root), traffic=traffic, every="1h")
    assert kept.data["features"] == direct.data["features"]
    assert kept.data["windows"] == direct.data["windows"]
    day = measure_drift(context, str(package.root), traffic=out, every="1d")
    assert len(day.data["windows"]) == 1
    last = measure_drift(context, str(package.root), traffic=out, since="2026-03-08T14:00Z")
    assert last.data["window"]["rows"] == 300


def test_shards_in_any_order_give_the_same_file(context, package, records, tmp_path):
    ref, parts = str(package.root), []
    for hour in range(3):
        traffic = write_hours(tmp_path / f"traffic-{hour}", records[hour * 100 : (hour + 1) * 100])
        parts.append(tmp_path / f"part-{hour}.json")
        profile.count(context, ref, traffic=traffic, out=parts[-1], every="1h")
    whole = tmp_path / "whole.json"
    profile.count(context, ref, traffic=write_hours(tmp_path / "all", records), out=whole, every="1h")
    merged = tmp_path / "merged.json"
    for order in (parts, parts[::-1]):
        profile.merge_files(context, order, out=merged)
        assert merged.read_bytes() == whole.read_bytes()


def test_a_log_that_is_still_written_is_counted_again_and_again_and_no_record_twice(
    context, package, records, tmp_path
):
    out, ref = tmp_path / "counts.json", str(package.root)
    for upto in (100, 250, 250, 300):
        traffic = write_hours(tmp_path / "traffic", records[:upto])
        result = profile.count(context, ref, traffic=traffic, out=out, add=True)
        assert result.data["rows"] == 3 * upto
    assert result.data["skipped"] == 250
    assert scores(measure_drift(context, ref, traffic=out)) == scores(
        measure_drift(context, ref, traffic=traffic)
    )


def test_a_shard_that_has_been_counted_is_passed_over_and_told(context, package, records, tmp_path):
    ref, part, whole = str(package.root), tmp_path / "part.json", tmp_path / "whole.json"
    profile.count(context, ref, traffic=write_hours(tmp_path / "part", records[:100]), out=part)
    profile.count(context, ref, traffic=write_hours(tmp_path / "all", records), out=whole)
    result = profile.merge_files(context, [part, whole, part], out=tmp_path / "merged.json")
    assert result.data["rows"] == 900
    assert result.data["repeated"] == [str(part), str(part)]
    assert (tmp_path / "merged.json").read_bytes() == whole.read_bytes()


def test_shards_that_overlap_in_part_are_refused(context, package, records, tmp_path):
    ref, parts = str(package.root), [tmp_path / "one.json", tmp_path / "other.json"]
    for path, piece in zip(parts, (records[:200], records[100:]), strict=True):
        profile.count(context, ref, traffic=write_hours(tmp_path / path.stem, piece), out=path)
    with pytest.raises(ConflictError, match="100 records of the server s"):
        profile.merge_files(context, parts, out=tmp_path / "merged.json")
    assert not (tmp_path / "merged.json").exists()


def test_a_file_of_rows_is_counted_once_under_any_name(context, package, tmp_path):
    ref, out = str(package.root), tmp_path / "counts.json"
    rows = write_rows(tmp_path / "rows.parquet", ROWS)
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(rows.read_bytes())
    for path in (rows, rows, copy):
        result = profile.count(context, ref, traffic=path, out=out, add=True)
        assert result.data["rows"] == 900
    assert result.data["repeated"] == [str(copy)]
    more = write_rows(tmp_path / "more.parquet", ROWS[:300])
    assert profile.count(context, ref, traffic=more, out=out, add=True).data["rows"] == 1200


def test_counts_of_another_baseline_are_refused(context, package, records, tmp_path):
    traffic, out = write_hours(tmp_path / "traffic", records), tmp_path / "counts.json"
    other = tmp_path / "baseline.json"
    profile.build(context, write_rows(tmp_path / "train.parquet", ROWS), out=other)
    profile.count(context, str(package.root), traffic=traffic, out=out)
    with pytest.raises(UsageError, match="bins of baseline"):
        measure_drift(context, None, baseline=other, traffic=out)
    second = tmp_path / "second.json"
    profile.count(context, None, baseline=other, traffic=traffic, out=second)
    with pytest.raises(UsageError, match="cannot be added"):
        profile.merge_files(context, [out, second], out=tmp_path / "merged.json")
    before = out.read_bytes()
    with pytest.raises(UsageError, match="cannot be added"):
        profile.count(
            context,
            None,
            baseline=other,
            traffic=write_rows(tmp_path / "rows.parquet", ROWS),
            out=out,
            add=True,
        )
    assert out.read_bytes() == before


def test_counts_cannot_be_cut_finer_than_they_were_kept(context, package, records, tmp_path):
    ref, out = str(package.root), tmp_path / "counts.json"
    profile.count(context, ref, traffic=write_hours(tmp_path / "traffic", records), out=out, every="1h")
    with pytest.raises(UsageError, match="longer than a window"):
        measure_drift(context, ref, traffic=out, every="15m")
    with pytest.raises(UsageError, match="cannot be cut"):
        measure_drift(context, ref, traffic=out, since="2026-03-08T12:30Z")
    by_arm = measure_drift(context, ref, traffic=out, by="arm")
    assert [each["arm"] for each in by_arm.data["groups"]] == ["production"]


def with_shares(document, *shares):
    return {**document, "parts": [{**document["parts"][0], "shares": list(shares)}]}


@pytest.mark.parametrize(
    "damage",
    [
        lambda document: document | {"schema": "mlx.counts/v9"},
        lambda document: document | {"parts": [{}]},
        lambda document: document | {"account": None},
        lambda document: {
            **document,
            "parts": [{**document["parts"][0], "shares": [{"share": 2, "rows": 1, "tallies": []}]}],
        },
        lambda document: {
            **document,
            "parts": [{**document["parts"][0], "shares": [{"share": 1, "rows": -1, "tallies": []}]}],
        },
    ],
)
def test_a_damaged_file_of_counts_is_refused(context, package, records, tmp_path, damage):
    out = tmp_path / "counts.json"
    profile.count(context, str(package.root), traffic=write_segment(tmp_path / "t", records[:9]), out=out)
    out.write_text(json.dumps(damage(json.loads(out.read_bytes())), sort_keys=True))
    with pytest.raises(UsageError):
        profile.merge_files(context, [out], out=tmp_path / "merged.json")


def test_an_empty_log_is_no_baseline_and_counts_nothing(context, package, records, tmp_path):
    traffic, out = write_segment(tmp_path / "traffic", records[:9]), tmp_path / "out.json"
    with pytest.raises(UndecidedError):
        profile.build(context, traffic, str(package.root), out=out, until="2020-01-01T00:00Z")
    assert not out.exists()
    profile.count(context, str(package.root), traffic=traffic, out=out, until="2020-01-01T00:00Z")
    assert Shard.from_document(json.loads(out.read_bytes())).rows == 0
    assert measure_drift(context, str(package.root), traffic=out).verdict == "undecided"

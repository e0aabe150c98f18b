import json
import math
from dataclasses import replace

import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.registry.row import Row, created_at
from mlx_platform.registry.version import (
    METRICS,
    PARAMS,
    UNKNOWN_TIME,
    Lineage,
    check_lineage,
    evidence_of,
    model_id_of,
    version_of,
)

DIGEST = "d" * 64


def row(name: str = "digits", number: int = 3, created_ms: int = 1_772_953_198_123, **tags: str) -> Row:
    written = {f"mlx.{key}": value for key, value in tags.items()}
    return Row(name, number, created_ms, f"models:/m-{'0' * 32}", "run", "", written)


def test_a_row_becomes_a_version_with_its_label_and_aliases() -> None:
    version = version_of(row(digest=DIGEST, size="12", parent="digits/2"), {"production": 3, "staging": 2})

    assert version is not None
    assert version.ref == "digits/3"
    assert version.label == "digits-20260308-003"
    assert version.aliases == ("production",)
    assert (version.digest, version.size, version.parent) == (DIGEST, 12, "digits/2")


def test_a_version_without_an_alias_is_a_staging_candidate() -> None:
    candidate, held = version_of(row(digest=DIGEST), {}), version_of(row(digest=DIGEST), {"staging": 3})

    assert candidate is not None
    assert held is not None
    assert (candidate.candidate, candidate.state) == (True, "staging candidate")
    assert (held.candidate, held.state) == (False, "staging")


@pytest.mark.parametrize(("tag", "state"), [("archived", "archived"), ("quarantined", "quarantined")])
def test_archived_and_quarantined_versions_are_no_candidates(tag: str, state: str) -> None:
    version = version_of(row(**{tag: "true", "digest": DIGEST}), {})

    assert version is not None
    assert not version.candidate
    assert version.state == state


@pytest.mark.parametrize(
    ("stage", "aliases", "state"),
    [
        ("None", {}, "not sealed"),
        ("Production", {}, "MLflow stage Production, not sealed"),
        ("Staging", {"production": 3}, "production, MLflow stage Staging, not sealed"),
        ("\x1b[2J", {}, "not sealed"),
    ],
)
def test_a_version_of_plain_mlflow_is_no_candidate(stage: str, aliases: dict[str, int], state: str) -> None:
    version = version_of(replace(row(), stage=stage), aliases)

    assert version is not None
    assert (version.sealed, version.candidate, version.state) == (False, False, state)
    assert version.document()["stage"] in {"", stage}


@pytest.mark.parametrize(
    "hostile",
    [
        row(name="digits\n"),
        row(name="\x1b[31mdigits"),
        row(name="=cmd()"),
        row(name="a/../b"),
        row(name="mlx.journal.digits"),
        Row("digits", 1, 0, "", "", "", {"mlflow.prompt.is_prompt": "True"}),
    ],
)
def test_rows_that_no_version_of_ours_can_look_like_are_skipped(hostile: Row) -> None:
    assert version_of(hostile, {}) is None


@pytest.mark.parametrize("hostile", [row(number=0), row(number=-3), row(created_ms=10**30)])
def test_a_number_or_a_time_that_no_registry_writes_hides_no_version(hostile: Row) -> None:
    version = version_of(hostile, {})

    assert version is not None
    assert version.number == hostile.number
    assert version.created == (created_at(hostile) or UNKNOWN_TIME)


def test_tags_of_the_wrong_form_are_as_good_as_none() -> None:
    version = version_of(
        row(digest="../etc", size="-1", params="[1]", metrics='{"a": "x", "b": 1e999, "c": 2}'),
        {"@evil\n": 3},
    )

    assert version is not None
    assert (version.digest, version.size, version.params, version.metrics) == ("", 0, {}, {"c": 2.0})
    assert version.aliases == ()


def test_lineage_reads_back_from_the_tags_it_was_written_to() -> None:
    lineage = Lineage(
        dataset_version="7", params={"lr": "0.1"}, metrics={"f1": 1}, tags={"mlx.quantized": "int8"}
    )
    tags = lineage.as_tags()
    version = version_of(Row("digits", 1, 0, "", "", "", tags), {})

    assert version is not None
    assert (version.dataset_version, version.params, version.metrics) == ("7", {"lr": "0.1"}, {"f1": 1.0})
    assert version.quantized
    assert json.loads(tags[PARAMS]) == {"lr": "0.1"}
    assert METRICS in tags


@pytest.mark.parametrize(
    "lineage",
    [
        Lineage(params={"a\n": "1"}),
        Lineage(params={"": "1"}),
        Lineage(params={"a/../b": "1"}),
        Lineage(params={"a": "x" * 6001}),
        Lineage(metrics={"f1": math.nan}),
        Lineage(metrics={"f1": math.inf}),
        Lineage(metrics={"x" * 251: 1.0}),
        Lineage(dataset_version="x" * 100_001),
        Lineage(description="x" * 5001),
    ],
)
def test_lineage_that_mlflow_could_not_keep_is_refused_before_anything_is_written(lineage: Lineage) -> None:
    with pytest.raises(UsageError):
        check_lineage(lineage)


def test_evidence_about_another_digest_does_not_count() -> None:
    passed = json.dumps({"digest": DIGEST, "verdict": "pass", "id": "1"})
    other = json.dumps({"digest": "e" * 64, "verdict": "pass", "id": "2"})
    tags = {"digest": DIGEST, "evidence.evaluation": passed, "evidence.consistency": other}
    version = version_of(row(**tags), {})

    assert version is not None
    assert list(evidence_of(version)) == ["evaluation"]
    assert evidence_of(version)["evaluation"].verdict == "pass"


def test_evidence_of_a_version_without_a_digest_does_not_count() -> None:
    version = version_of(row(**{"evidence.evaluation": json.dumps({"digest": "", "verdict": "pass"})}), {})

    assert version is not None
    assert evidence_of(version) == {}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (f"models:/m-{'a' * 32}", f"m-{'a' * 32}"),
        (f"models:/m-{'a' * 32}\n", ""),
        ("models:/digits/3", ""),
        ("models:/m-../../etc", ""),
    ],
)
def test_only_mlflows_own_ids_are_taken_for_one(source: str, expected: str) -> None:
    assert model_id_of(source) == expected

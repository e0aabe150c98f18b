import math
from datetime import UTC, datetime

import pytest

from mlx_platform.registry.row import Row
from mlx_platform.registry.runs import RunRecord, dataset_text, lineage_of
from mlx_platform.registry.version import Version, check_lineage, version_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def version(description: str = "", **tags: str) -> Version:
    found = version_of(Row("theirs", 3, int(datetime.now(UTC).timestamp()), "", "", description, tags), {})
    assert found
    return found


def test_a_run_tells_what_a_version_is_made_of() -> None:
    run = RunRecord(
        id="0" * 32,
        artifact_uri="",
        params={"lr": "0.1"},
        metrics={"f1": 0.9},
        tags={"mlflow.source.git.commit": COMMIT, "mlflow.user": "ada", "team": "vision", "owner": "ada"},
        datasets=(("held-out", "1", "eval"), ("writers", "2", "training")),
    )

    lineage, warnings = lineage_of(run, version("wider", owner="bob"))

    assert (lineage.params, lineage.metrics) == ({"lr": "0.1"}, {"f1": 0.9})
    assert (lineage.git_commit, lineage.dataset_version) == (COMMIT, "writers (2)")
    assert lineage.tags == {"team": "vision", "owner": "bob"}
    assert (lineage.description, warnings) == ("wider", ())


def test_without_a_run_the_version_speaks_for_itself() -> None:
    lineage, warnings = lineage_of(None, version("wider", owner="bob"))

    assert (lineage.description, lineage.tags, lineage.params, warnings) == (
        "wider",
        {"owner": "bob"},
        {},
        (),
    )


def test_a_sealed_version_keeps_its_own_lineage() -> None:
    sealed = version(
        **{
            "mlx.digest": "d" * 64,
            "mlx.params": '{"lr": "7"}',
            "mlx.metrics": '{"f1": 0.5}',
            "mlx.git_commit": f"{COMMIT}+dirty",
            "mlx.dataset": "2026-11",
            "mlx.dataset_fingerprint": "f" * 64,
            "mlx.quantized": "int8",
            "mlx.parent": "theirs/2",
            "mlx.evidence.evaluation": "{}",
        }
    )

    lineage, _ = lineage_of(None, sealed)

    assert (lineage.params, lineage.metrics) == ({"lr": "7"}, {"f1": 0.5})
    assert (lineage.git_commit, lineage.dataset_version) == (f"{COMMIT}+dirty", "2026-11")
    assert (lineage.dataset_fingerprint, lineage.parent) == ("f" * 64, "theirs/2")
    # A copy of a quantized version needs the evidence that quantized versions need; evidence is not copied.
    assert lineage.tags == {"mlx.quantized": "int8"}


@pytest.mark.parametrize(
    ("run", "lost"),
    [
        (RunRecord("0", "", metrics={"f1": 0.9, "loss": math.nan}), "loss"),
        (RunRecord("0", "", params={"f1": "0.9", "a/../b": "x"}), "a/../b"),
        (RunRecord("0", "", params={"f1": "1", "long": "x" * 7000}), "long"),
        (RunRecord("0", "", params={"f1": "1", "\x1b[2J": "x"}), "\\u001b[2J"),
    ],
)
def test_what_cannot_be_kept_is_said(run: RunRecord, lost: str) -> None:
    lineage, warnings = lineage_of(run, None)

    check_lineage(lineage)
    assert {*lineage.params, *lineage.metrics} == {"f1"}
    assert lost in warnings[0]
    assert warnings[0].isprintable()


def test_more_than_a_version_can_hold_is_left_behind() -> None:
    run = RunRecord("0", "", params={f"p{index}": "x" * 5000 for index in range(100)}, tags={"a": "b"})

    lineage, warnings = lineage_of(run, None)

    check_lineage(lineage)
    assert lineage.params == {}
    assert "too large" in warnings[0]


@pytest.mark.parametrize("commit", ["main", "../../x", COMMIT + "\n", "\x1b[31m", ""])
def test_what_is_no_commit_is_none(commit: str) -> None:
    lineage, _ = lineage_of(RunRecord("0", "", tags={"mlflow.source.git.commit": commit}), None)

    assert lineage.git_commit == ""


def test_datasets_are_named_once_and_safely() -> None:
    datasets = (("a", "1", ""), ("a", "1", ""), ("\x1b[2J", "", ""))

    assert dataset_text(RunRecord("0", "", datasets=datasets)) == "a (1), \\u001b[2J"
    assert dataset_text(None) == ""

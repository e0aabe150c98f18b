"""One logged request answered again, with its stages side by side."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from answered import answered, encoded, write_log, wrong_answer
from colour_project import DAY, ColourProject, copy_colours
from linear_models import colours

from mlx_platform.core.errors import NotFoundError
from mlx_platform.core.report import Result
from mlx_platform.core.tensors import decode_array
from mlx_platform.core.verdict import Verdict
from mlx_platform.traffic.record import Record
from mlx_platform.workflows.replay.one import reproduce


@pytest.fixture
def project(colour_template: Path, tmp_path: Path) -> ColourProject:
    return copy_colours(colour_template, tmp_path / "project")


@pytest.fixture
def logged(project: ColourProject) -> Callable[..., None]:
    def write(ref: str = "colours/1", change: Callable[[Record], Record] | None = None) -> None:
        model = project.model(ref)
        features, _codes = colours(3)
        records = [answered(model, features[k : k + 1], k, DAY + k * timedelta(minutes=1)) for k in range(3)]
        records[1] = change(records[1]) if change else records[1]
        write_log(project.folder / "traffic", records)

    return write


def run(project: ColourProject, request_id: str = "r-1", **more: bool) -> Result:
    return reproduce(project.context, "colours/1", request_id, traffic=project.folder / "traffic", **more)


def test_a_request_that_gets_the_same_answer_agrees_at_every_stage(project, logged):
    logged()
    result = run(project)

    assert result.verdict is Verdict.PASS
    assert [one["stage"] for one in result.data["stages"]] == ["raw", "tensor", "logits", "output"]
    assert all(one["logged"] == one["anew"] for one in result.data["stages"])


def test_each_stage_is_tried_with_what_the_server_had_there(project, logged):
    model = project.model("colours/1")

    def with_tensors(record: Record) -> Record:
        feeds = model.encode({name: decode_array(one) for name, one in record.inputs.items()})
        stages = {"tensor": encoded(feeds), "logits": encoded(model.run(feeds))}
        return wrong_answer(replace(record, stages=stages))

    logged(change=with_tensors)
    result = run(project)

    assert result.data["alone"] == {"tensor": True, "logits": True, "output": False}
    assert "Each stage given what the server had there" in [one.title for one in result.report.sections]


def test_the_first_stage_that_differs_is_named(project, logged):
    logged(change=wrong_answer)
    result = run(project)

    assert (result.exit_code, result.data["first_difference"]) == (5, "output")
    assert result.data["outputs"]["confidence"]["disagreeing"] == 1
    assert "post-processing" in result.report.checks[0].message
    assert result.data["values"] is None
    values = run(project, show_values=True).data["values"]
    assert float(values["logged"]["confidence"]) * 2 == pytest.approx(float(values["anew"]["confidence"]))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda record: replace(record, status=500), "answered with 500"),
        (lambda record: record.without_payload(), "too large for the log"),
        (lambda record: replace(record, cache="semantic"), "another text"),
        (lambda record: replace(record, outputs={}), "cannot be read"),
    ],
)
def test_a_request_that_cannot_be_replayed_is_undecided_and_says_why(project, logged, change, why):
    logged(change=change)
    result = run(project)

    assert result.exit_code == 7
    assert why in result.report.checks[0].message


def test_inputs_that_cannot_be_answered_any_more_fail(project, logged):
    logged(change=lambda record: replace(record, inputs={"x0": record.inputs["x0"]}))

    assert (run(project).exit_code, run(project).report.checks[0].measured) == (5, "no answer")


def test_a_request_that_nobody_or_another_version_answered_is_not_found(project, logged):
    logged("colours/2")
    with pytest.raises(NotFoundError, match="There is no request 'x'"):
        run(project, "x")
    with pytest.raises(NotFoundError, match="colours/2 did") as caught:
        run(project)
    assert "mlx consistency colours/2" in caught.value.hint


def test_the_command_of_a_nightly_report_reproduces_its_request(project, logged, mlx, monkeypatch):
    logged(change=wrong_answer)
    monkeypatch.chdir(project.folder)
    outcome = mlx("consistency", "colours/1", "--traffic", "traffic", "--request-id", "r-1", "--show-values")

    assert outcome.code == 5
    assert "the first stage that differs is 'output'" in outcome.out
    assert (
        mlx("consistency", "colours/1", "--traffic", "traffic", "--request-id", "r-1", "--last", "1d").code
        == 2
    )

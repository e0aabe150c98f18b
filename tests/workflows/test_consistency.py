from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linear_models import classifier, colours, pack

from mlx_platform.core.clock import rfc3339, system_clock
from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.core.settings import CacheSettings, Settings
from mlx_platform.core.tensors import encode_array
from mlx_platform.core.verdict import Verdict
from mlx_platform.inference.hashes import stage_hash
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import Package
from mlx_platform.registry.version import Lineage
from mlx_platform.traffic.frame import encode
from mlx_platform.traffic.record import Record
from mlx_platform.traffic.segment import OPEN_SUFFIX, Partition
from mlx_platform.traffic.writer import TrafficWriter
from mlx_platform.workflows.consistency import check_consistency
from mlx_platform.workflows.context import Context, make_context

Change = Callable[[Record], Record]


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Package:
    return pack(classifier(tmp_path_factory.mktemp("models") / "one", 5 * np.eye(3)))


@pytest.fixture(scope="module")
def model(package) -> Model:
    return Model.load(package, name=package.root.name, device="cpu")


@pytest.fixture
def context(tmp_path) -> Context:
    return make_context(Settings(folder=tmp_path, cache=CacheSettings(dir=str(tmp_path / "cache"))))


def _encoded(arrays: Any) -> dict[str, Any]:
    return {name: encode_array(np.asarray(array)) for name, array in arrays.items()}


def _answered(model: Model, features: np.ndarray, number: int, endpoint: str = "predict") -> Record:
    """A request as the server answers and records it."""
    columns = {f"x{index}": features[:, index].astype(np.float64) for index in range(3)}
    feeds = model.encode(columns)
    tensors = model.run(feeds)
    answers = model.decode(tensors)
    hashes = {"tensor": stage_hash(feeds), "logits": stage_hash(tensors)}
    raw = endpoint == "predict"
    if raw:
        hashes |= {"raw": stage_hash(columns), "output": stage_hash(answers)}
    return Record(
        request_id=f"r-{number}",
        time=system_clock(),
        seq=number,
        server_id="s",
        boot_id="b",
        model=model.name,
        version=model.version,
        digest=model.digest,
        endpoint=endpoint,
        rows=len(features),
        inputs=_encoded(columns if raw else feeds),
        outputs=_encoded(answers if raw else tensors),
        hashes=hashes,
    )


@pytest.fixture
def log(tmp_path, model) -> Callable[..., Path]:
    """Write a log of answered requests; `change` alters those whose number it takes."""

    def write(
        requests: int = 300, change: Change | None = None, every: int = 1, endpoint: str = "predict"
    ) -> Path:
        features, _codes = colours(requests * 3)
        records = []
        for number in range(requests):
            size = 1 + number % 3
            record = _answered(model, features[number * 3 : number * 3 + size], number, endpoint)
            records.append(change(record) if change and number % every == 0 else record)
        folder = tmp_path / "traffic"
        segment = folder / Partition.of(records[0]).path / f"s-b-000001{OPEN_SUFFIX}"
        segment.parent.mkdir(parents=True)
        segment.write_bytes(b"".join(map(encode, records)))
        return folder

    return write


def _sealed(tmp_path: Path, model: Model, requests: int) -> Path:
    """The same, written and sealed as the server does it."""
    folder = tmp_path / "sealed"
    writer = TrafficWriter(folder, model=model.name, version="0", queue_bytes=1 << 28, disk_bytes=1 << 30)
    features, _codes = colours(requests)
    for number in range(requests):
        record = _answered(model, features[number : number + 1], number)
        writer.log(replace(record, seq=writer.next_seq(), server_id=writer.server_id, boot_id=writer.boot_id))
    writer.close(60)
    return folder


@pytest.mark.parametrize("endpoint", ["predict", "infer"])
def test_a_faithful_log_agrees_completely(context, package, log, endpoint):
    result = check_consistency(context, str(package.root), traffic=log(endpoint=endpoint))

    assert result.verdict is Verdict.PASS
    assert result.data["agreement"]["request"] == result.data["agreement"]["element"] == 1.0
    assert result.data["agreement"]["lower"] > 0.99
    assert result.data["requests"]["compared"] == 300
    assert result.data["stages"]["tensor"] == {"compared": 300, "equal": 300, "first_difference": 0}
    assert result.data["evidence"] is None


def _with_output(record: Record, name: str, change: Callable[[Any], Any]) -> Record:
    cells = record.outputs[name]["data"]
    return replace(record, outputs={**record.outputs, name: {**record.outputs[name], "data": change(cells)}})


def _wrong_answer(record: Record) -> Record:
    changed = _with_output(record, "confidence", lambda cells: [cell / 2 for cell in cells])
    return replace(changed, hashes={**record.hashes, "output": "0" * 16})


def _wrong_model(record: Record) -> Record:
    changed = _with_output(record, "probabilities", lambda cells: [cell * 0.9 for cell in cells])
    return replace(changed, hashes={**record.hashes, "logits": "0" * 16, "output": "0" * 16})


def _wrong_encoding(record: Record) -> Record:
    return replace(_wrong_model(record), hashes=dict.fromkeys(("tensor", "logits", "output"), "0" * 16))


@pytest.mark.parametrize(
    ("change", "stage", "cause"),
    [
        (_wrong_answer, "output", "post-processing"),
        (_wrong_model, "logits", "the model or its runtime"),
        (_wrong_encoding, "tensor", "pre-processing"),
    ],
)
def test_altered_answers_fail_and_name_stage_reason_and_requests(context, package, log, change, stage, cause):
    result = check_consistency(context, str(package.root), traffic=log(100, change, every=10))

    assert result.exit_code == 5
    assert result.data["agreement"]["request"] == 0.9
    assert result.data["diverging_stage"] == stage
    assert result.data["reasons"].keys() == {"value"}
    assert result.data["examples"][:2] == ["r-0", "r-10"]
    assert cause in result.report.summary


def test_a_changed_label_is_a_mismatch_of_labels(context, package, log):
    change = lambda record: _with_output(record, "label", lambda cells: ["pink"] * len(cells))  # noqa: E731

    result = check_consistency(context, str(package.root), traffic=log(100, change, every=2))

    assert result.verdict is Verdict.FAIL
    assert result.data["agreement"]["label"] < 0.6


def test_altered_inputs_are_found_at_the_first_stage(context, package, log):
    def change(record: Record) -> Record:
        values = [-cell for cell in record.inputs["x0"]["data"]]
        return replace(record, inputs={**record.inputs, "x0": {**record.inputs["x0"], "data": values}})

    result = check_consistency(context, str(package.root), traffic=log(100, change, every=5))

    assert result.verdict is Verdict.FAIL
    assert result.data["diverging_stage"] == "raw"


def test_rounding_of_another_batch_size_is_no_disagreement(context, package, log):
    def change(record: Record) -> Record:
        return _with_output(record, "probabilities", lambda cells: [cell * (1 + 2e-6) for cell in cells])

    assert check_consistency(context, str(package.root), traffic=log(change=change)).verdict is Verdict.PASS


def test_few_requests_that_agree_are_not_enough(context, package, log):
    result = check_consistency(context, str(package.root), traffic=log(20))

    assert (result.exit_code, result.data["agreement"]["request"]) == (7, 1.0)
    assert "299 with 0 mismatches would" in result.report.checks[0].message


@pytest.mark.parametrize(
    ("change", "counted"),
    [
        (lambda record: replace(record, digest="0" * 64), "not_comparable"),
        (lambda record: replace(record, status=422, error="no"), "failed"),
        (lambda record: record.without_payload(), "truncated"),
        (lambda record: replace(record, cache="semantic"), "semantic"),
        (lambda record: replace(record, inputs={"x0": {"datatype": "FP32"}}), "unreadable"),
    ],
)
def test_what_cannot_be_replayed_is_counted_and_never_compared(context, package, log, change, counted):
    result = check_consistency(context, str(package.root), traffic=log(40, change, every=4))

    assert result.data["requests"][counted] == 10
    assert result.data["requests"]["compared"] == 30


def test_another_version_alone_leaves_nothing_to_compare(context, package, log):
    traffic = log(10, lambda record: replace(record, digest="0" * 64, version="7"))

    result = check_consistency(context, str(package.root), traffic=traffic)

    assert (result.exit_code, result.data["agreement"]["request"]) == (7, None)
    assert "/7" in result.report.next_steps[0]
    assert any("another package" in warning for warning in result.warnings)


def test_a_request_that_was_answered_but_is_refused_now_disagrees(context, package, log):
    def change(record: Record) -> Record:
        return replace(record, inputs={name: record.inputs[name] for name in ("x0", "x1")})

    result = check_consistency(context, str(package.root), traffic=log(100, change, every=10))

    assert result.verdict is Verdict.FAIL
    assert result.data["reasons"] == {"unparsable": 10}


def test_a_request_asked_for_some_outputs_only_is_replayed_for_those(context, package, log):
    result = check_consistency(context, str(package.root), traffic=log(50, endpoint="infer"))

    assert list(result.data["outputs"]) == ["probabilities"]
    assert result.data["agreement"]["label"] is None


def test_a_sample_is_drawn_evenly_and_the_rest_is_counted(context, package, log):
    traffic = log(100)

    first, again = (
        check_consistency(context, str(package.root), traffic=traffic, sample=30) for _ in range(2)
    )

    assert first.data["requests"]["compared"] == 30
    assert first.data["requests"]["sampled_out"] == 70
    assert first.data["window"] == again.data["window"]


def test_since_leaves_out_what_came_before(context, package, log):
    traffic = log(10)
    later = rfc3339(system_clock() + timedelta(hours=2))

    assert (
        check_consistency(context, str(package.root), traffic=traffic, since="1h").data["requests"]["read"]
        == 10
    )
    assert check_consistency(context, str(package.root), traffic=traffic, since=later).exit_code == 7


def test_a_log_of_which_too_much_is_lost_is_undecided(context, package, model, tmp_path):
    traffic = _sealed(tmp_path, model, 320)
    assert check_consistency(context, str(package.root), traffic=traffic).verdict is Verdict.PASS
    segment = next(traffic.rglob("*.parquet"))
    (segment.parent / "server-dead-1.parquet").write_bytes(segment.read_bytes()[:-200])

    result = check_consistency(context, str(package.root), traffic=traffic)

    assert result.exit_code == 7
    assert [check.name for check in result.report.checks] == ["agreement", "log"]


def test_reports_are_written(context, package, log, tmp_path):
    check_consistency(
        context, str(package.root), traffic=log(30, _wrong_answer, every=3), report=tmp_path / "out"
    )

    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.html", "report.json", "junit.xml"}
    assert "r-3" in (tmp_path / "out" / "report.html").read_text()


def test_a_plain_file_and_a_missing_folder_are_refused(context, package, tmp_path):
    (tmp_path / "rows.csv").write_text("x0\n1\n")

    with pytest.raises(UsageError, match="is a file"):
        check_consistency(context, str(package.root), traffic=tmp_path / "rows.csv")
    with pytest.raises(NotFoundError, match="no traffic log"):
        check_consistency(context, str(package.root), traffic=tmp_path / "nowhere")


def test_an_empty_log_is_undecided(context, package, tmp_path):
    (tmp_path / "traffic").mkdir()

    result = check_consistency(context, str(package.root), traffic=tmp_path / "traffic")

    assert result.exit_code == 7
    assert result.report.next_steps[0].startswith("mlx serve")


def test_the_outcome_is_kept_with_a_registered_version(context, model, package, log):
    version, _created = context.catalog.register(model.name, package, Lineage())

    result = check_consistency(context, version.ref, traffic=log())

    kept = context.catalog.evidence(version)["consistency"]
    assert (kept.id, kept.verdict, kept.digest) == (result.data["evidence"], "pass", package.digest)
    assert kept.numbers["agreement"]["request"] == 1.0


def test_an_observer_is_told_of_every_request_and_of_each_mismatch_with_both_answers(context, package, log):
    compared, mismatches = [], []

    class Watching:
        def compared(self, request: Any) -> None:
            compared.append(request.record.request_id)

        def mismatch(self, mismatch: Any) -> None:
            mismatches.append(mismatch)

    check_consistency(
        context, str(package.root), traffic=log(60, _wrong_answer, every=20), observer=Watching()
    )

    assert len(compared) == 60
    assert [one.request.record.request_id for one in mismatches] == ["r-0", "r-20", "r-40"]
    assert {one.stage for one in mismatches} == {"output"}
    first = mismatches[0]
    np.testing.assert_allclose(first.request.outputs["confidence"] * 2, first.answers["confidence"])
    assert first.outputs["confidence"].reasons == {"value": first.outputs["confidence"].disagreeing}

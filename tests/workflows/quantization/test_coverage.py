from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linear_models import write_source
from onnx import helper

from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import DriftSettings
from mlx_platform.core.tensors import Columns
from mlx_platform.drift.extract.inputs import InputFeatures
from mlx_platform.drift.profile import Profile, build_profile
from mlx_platform.inference.build import BuildOptions, build_package
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import BASELINE
from mlx_platform.workflows.quantization.coverage import Coverage, baseline_of, check_names, cover

SETTINGS = DriftSettings()
LABELS = ("low", "middle", "high")
_SPEC = """format = 1
task = "classification"
labels = ["low", "middle", "high"]
[[pre]]
step = "columns"
names = ["a", "b", "c"]
[[post]]
step = "labels"
output = "probabilities"
"""


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Model]:
    """A model of the columns a, b and c that answers low, middle or high by the size of a."""

    def make(baseline: bytes | None = None) -> Model:
        weights = {"w": np.float32([[-4, 0, 4], [0, 0, 0], [0, 0, 0]]), "b": np.float32([0, 4, 0])}
        nodes = [
            helper.make_node("Gemm", ["x", "w", "b"], ["z"]),
            helper.make_node("Softmax", ["z"], ["probabilities"]),
        ]
        number = len(list(tmp_path.iterdir()))
        folder = write_source(
            tmp_path / f"source-{number}", nodes, weights, _SPEC, 3, ("probabilities", len(LABELS))
        )
        out = tmp_path / f"built-{number}"
        return Model.load(build_package(folder, out, BuildOptions(baseline=baseline)).package)

    return make


def columns(rows: int, seed: int, **shift: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(shift.get(name, 0), 1.5, rows) for name in ("a", "b", "c")}


def covered(model: Model, calibration: Columns, judged: Columns, *baseline: Any, **options: Any) -> Coverage:
    answers = model.predict(judged).columns
    met = model.predict(calibration).columns
    return cover(model, calibration, judged, met, answers, SETTINGS, *baseline, **options)


def test_rows_of_one_source_cover_each_other(build) -> None:
    found = covered(build(), columns(800, 0), columns(800, 1))

    assert found.share > 0.99
    assert found.different == ()
    assert (found.labels, found.unmet) == (3, {})
    assert found.against == "the judged rows"
    assert found.warnings(SETTINGS) == ()


def test_random_rows_in_place_of_real_ones_are_noticed(build) -> None:
    real = {name: 8 + 4 * column for name, column in columns(800, 1).items()}

    found = covered(build(), columns(800, 0), real)

    assert set(found.different) == {"a", "b", "c"}
    assert found.share < 0.5
    alike, within = found.warnings(SETTINGS)[:2]
    assert "3 of 3 features" in alike
    assert "the judged rows" in alike
    assert "random" in alike
    assert "judged values lie within" in within


def test_rows_of_one_kind_are_noticed_by_what_they_are_answered_with(build) -> None:
    narrow = columns(800, 0)
    narrow["a"] = np.abs(narrow["a"]) + 1.2

    found = covered(build(), narrow, columns(800, 1))

    assert found.labels == 1
    assert list(found.unmet) == ["middle", "low"]
    assert found.unmet["low"] == pytest.approx(0.25, abs=0.05)
    assert "answered with middle (50%), low (27%)" in found.warnings(SETTINGS)[-1]


def test_rows_are_compared_with_the_baseline_of_the_package(build) -> None:
    model = build()
    trained = columns(900, 2)
    baseline = build_profile(InputFeatures(model.spec, None)(trained), model.predict(trained).columns)
    shifted = columns(800, 0, b=4.0)

    found = covered(model, shifted, shifted, baseline, source="the baseline of x/1")

    assert found.different == ("b",)
    assert found.against == "the baseline of x/1"
    assert "1 of 3 features" in found.warnings(SETTINGS)[0]
    assert "look like the baseline of x/1: b" in found.warnings(SETTINGS)[0]
    assert {each.name for each in found.compared} == {
        *("a", "b", "c"),
        *("label", "confidence", "entropy", "margin"),
    }
    assert found.document()["most_different"][0]["feature"] == "b"
    assert found.table().rows[0][0] == "b"


def test_a_baseline_of_other_columns_is_left_aside(build) -> None:
    baseline = build_profile({"other": np.arange(100.0)})

    found = covered(build(), columns(300, 0), columns(300, 1), baseline, source="the baseline")

    assert found.against == "the judged rows"


def test_words_that_calibration_never_saw_are_outside(build) -> None:
    calibration, judged = columns(400, 0), columns(400, 1)

    found = covered(build(), calibration | {"b": np.zeros(400)}, judged | {"b": np.ones(400)})

    assert found.share == pytest.approx(2 / 3, abs=0.01)
    assert found.outside == ("b",)


def test_a_baseline_is_read_and_one_that_cannot_be_is_said(build) -> None:
    profile = build_profile({"a": np.arange(9.0)})
    sound, damaged, none = (build(content).package for content in (profile.to_json(), b"{}", None))

    assert (sound.root / BASELINE).is_file()
    assert baseline_of(none, "x/1") == (None, "")
    read, said = baseline_of(sound, "x/1")
    assert read is not None
    assert (read.baseline_id, said) == (profile.baseline_id, "")
    found, said = baseline_of(damaged, "x/1")
    assert found is None
    assert said.startswith("The baseline of x/1 cannot be read")


@pytest.fixture
def positional(build, monkeypatch: pytest.MonkeyPatch) -> Model:
    """The same model without names: it takes three columns in their order."""
    start, end = _SPEC.index("[[pre]]"), _SPEC.index("[[post]]")
    monkeypatch.setitem(globals(), "_SPEC", _SPEC[:start] + _SPEC[end:])
    return build()


def test_columns_in_another_order_than_the_baselines_are_refused(build, positional: Model) -> None:
    rows = columns(100, 0)
    baseline = Profile.from_json(build_profile(rows).to_json())
    turned = {name: rows[name] for name in ("a", "c", "b")}

    assert check_names(positional, rows, baseline, "the baseline") == ""
    assert check_names(positional, turned, None, "") == ""
    with pytest.raises(
        UsageError, match="column 2 of the calibration rows is 'c' where the baseline has 'b'"
    ):
        check_names(positional, turned, baseline, "the baseline")


def test_other_columns_than_the_baselines_are_a_warning_where_names_mean_nothing(
    build, positional: Model
) -> None:
    rows = columns(100, 0)
    baseline = build_profile(rows)
    renamed = {"a": rows["a"], "b": rows["b"], "z": rows["c"]}

    assert "have z where the baseline has c" in check_names(positional, renamed, baseline, "the baseline")
    fewer = {"a": rows["a"], "b": rows["b"]}
    assert "have nothing where the baseline has c" in check_names(positional, fewer, baseline, "the baseline")


def test_a_model_that_names_its_columns_is_not_asked_about_their_order(build) -> None:
    rows = columns(100, 0)

    assert check_names(build(), {name: rows[name] for name in "cba"}, build_profile(rows), "") == ""

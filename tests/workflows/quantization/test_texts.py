from pathlib import Path

import numpy as np
import pytest
from text_models import judge_package

from mlx_platform.core.settings import load_settings
from mlx_platform.core.verdict import Verdict
from mlx_platform.workflows.context import Context, make_context
from mlx_platform.workflows.quantize import quantize

GOOD, BAD, FILLING = ("great", "wonderful"), ("awful", "terrible"), ("a", "the", "and", "film", "movie")


@pytest.fixture
def context(own_home: Path) -> Context:
    return make_context(load_settings())


def write(path: Path, rows: int, seed: int, words: tuple[int, int]) -> Path:
    import pandas as pd

    rng = np.random.default_rng(seed)
    labels = rng.choice(["bad", "good"], rows)
    texts = []
    for label in labels:
        said = [*rng.choice(FILLING, rng.integers(*words)), rng.choice(GOOD if label == "good" else BAD)]
        texts.append(" ".join(rng.permutation(said)))
    strictness = rng.uniform(0.5, 1.5, rows).astype(np.float32)
    pd.DataFrame({"text": texts, "strictness": strictness, "label": labels}).to_parquet(path)
    return path


def test_a_model_of_texts_is_calibrated_at_their_true_lengths(context: Context, tmp_path: Path) -> None:
    judge_package(tmp_path / "judge")
    calibration = write(tmp_path / "calibration.parquet", 300, 0, (2, 9))
    data = write(tmp_path / "data.parquet", 500, 1, (2, 9))

    result = quantize(
        context,
        str(tmp_path / "judge"),
        calibration=calibration,
        data=data,
        output=tmp_path / "small.onnx",
        max_size_ratio=3.0,  # scales weigh more than the few weights of so small a network
    )

    assert result.verdict is Verdict.PASS
    coverage = result.data["calibration"]["coverage"]
    assert (coverage["different"], coverage["unmet_labels"], coverage["labels"]) == ([], {}, 2)
    assert coverage["share"] > 0.99
    assert {found["feature"] for found in coverage["most_different"]} >= {"text.chars", "text.words", "label"}


def test_calibration_on_shorter_texts_of_one_kind_is_called_out(context: Context, tmp_path: Path) -> None:
    import pandas as pd

    judge_package(tmp_path / "judge")
    rows = pd.read_parquet(write(tmp_path / "rows.parquet", 600, 0, (1, 3)))
    rows[rows.label == "good"].to_parquet(tmp_path / "calibration.parquet")
    data = write(tmp_path / "data.parquet", 500, 1, (9, 20))

    result = quantize(
        context,
        str(tmp_path / "judge"),
        calibration=tmp_path / "calibration.parquet",
        data=data,
        output=tmp_path / "small.onnx",
        keep_failed=True,
    )

    said = " ".join(result.warnings)
    assert "text.chars" in said
    assert "text.words" in said
    assert "No calibration row is answered with bad" in said

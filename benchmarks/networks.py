"""Real networks with real rows to calibrate on and to be judged by."""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from docstrings import docstrings_of
from encoder import build, embed, tokens

Feeds = dict[str, npt.NDArray[Any]]
Answer = npt.NDArray[Any]

LENGTH = 128  # tokens of the text that is raced
_PACKAGES = ("mlflow", "numpy", "pandas", "scipy", "sklearn")
_HEAD_ROWS = 1000
_FIT_FILES = 300
_FILES = Path(__file__).parents[1] / "examples" / "evaluation_magika" / "prepare.py"


@dataclass(frozen=True, slots=True)
class Task:
    """A network, inputs to calibrate on and to be judged by, and one input to race with."""

    name: str
    model: Path
    calibration: Sequence[Feeds]
    judged: Sequence[Feeds]
    truth: Answer
    raced: Feeds


def texts_task(folder: Path, rows: int, calibration: int) -> Task:
    folder.mkdir()
    plain = build(folder / "encoder")
    texts, labels = _docstrings(_HEAD_ROWS + calibration + rows)
    learnt = slice(_HEAD_ROWS)
    head = _head(embed(plain, texts[learnt], threads=os.cpu_count() or 1), labels[learnt])
    source = build(folder / "classifier", head=(_PACKAGES, head))
    feeds = _each(source, texts)
    long = next(row for row in feeds if row["input_ids"].shape[1] >= LENGTH)
    return Task(
        "Text encoder (all-MiniLM-L6-v2, opset 17)",
        source / "model.onnx",
        feeds[_HEAD_ROWS : _HEAD_ROWS + calibration],
        feeds[_HEAD_ROWS + calibration :],
        labels[_HEAD_ROWS + calibration :],
        {name: value[:, :LENGTH] for name, value in long.items()},
    )


def _each(source: Path, texts: Sequence[str]) -> list[Feeds]:
    """The network's inputs for every text alone, at its true length."""
    found = []
    for start in range(0, len(texts), 256):
        batch = tokens(source, texts[start : start + 256])
        lengths = batch["attention_mask"].sum(axis=1)
        found += [
            {name: value[row : row + 1, :length].copy() for name, value in batch.items()}
            for row, length in enumerate(lengths)
        ]
    return found


def _head(embeddings: npt.NDArray[np.float32], labels: Answer) -> npt.NDArray[np.float32]:
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(C=10, fit_intercept=False, max_iter=1000).fit(embeddings, labels)
    return np.asarray(fitted.coef_ / 20, np.float32)  # the encoder multiplies by it


def _docstrings(count: int) -> tuple[list[str], Answer]:
    """Starts of docstrings of five packages that are installed here, and which of them each is from."""
    pairs: list[tuple[str, int]] = []
    share = -(-count // len(_PACKAGES))
    for label, package in enumerate(_PACKAGES):
        found: dict[str, None] = {}
        for path in sorted((Path(sysconfig.get_path("purelib")) / package).rglob("*.py")):
            if len(found) >= share:
                break
            if "tests" not in path.parts:
                found |= dict.fromkeys(docstrings_of(path))
        pairs += [(text, label) for text in list(found)[:share]]
    order = np.random.default_rng(0).permutation(len(pairs))[:count]
    texts, labels = zip(*(pairs[place] for place in order), strict=True)
    return list(texts), np.array(labels)


def files_task(folder: Path) -> Task:
    import pyarrow.parquet as pq

    folder.mkdir()
    subprocess.run(
        [sys.executable, str(_FILES)],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    rows = pq.read_table(folder / "files.parquet").to_pydict()
    spec = (folder / "magika" / "model.toml").read_text()
    labels = json.loads(next(line for line in spec.splitlines() if line.startswith("labels"))[9:])
    inputs = np.array(rows["bytes"], np.int32)
    order = np.random.default_rng(0).permutation(len(inputs))
    fit, judged = order[:_FIT_FILES], order[_FIT_FILES:]
    feeds = [{"bytes": inputs[place : place + 1]} for place in range(len(inputs))]
    return Task(
        "Classifier of files (magika, opset 15)",
        folder / "magika" / "model.onnx",
        [feeds[place] for place in fit],
        [feeds[place] for place in judged],
        np.array([labels.index(label) for label in rows["label"]])[judged],
        feeds[judged[0]],
    )

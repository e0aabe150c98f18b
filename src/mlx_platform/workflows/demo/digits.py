"""The demo's data: 1,797 handwritten digits of 8 x 8 pixels, which scikit-learn ships.

UCI "Optical recognition of handwritten digits". The file is ordered by writer, so splits in file order give
test rows from people whom the model has never seen.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.float32]
"""[rows, 64], each from 0 to 16, row by row of the image."""
Labels = npt.NDArray[np.int64]

PIXELS = tuple(f"p{index:02d}" for index in range(64))
LABELS = tuple(str(digit) for digit in range(10))
_TRAIN, _CALIBRATION = 1000, 300


@dataclass(frozen=True, slots=True)
class Split:
    name: str
    pixels: Pixels
    labels: Labels


def load_splits() -> tuple[Split, Split, Split]:
    """The rows in file order as train [1000], calibration [300] and test [497]."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels, labels = bunch.data.astype(np.float32), bunch.target.astype(np.int64)
    bounds = {
        "train": slice(0, _TRAIN),
        "calibration": slice(_TRAIN, _TRAIN + _CALIBRATION),
        "test": slice(_TRAIN + _CALIBRATION, None),
    }
    train, calibration, test = (Split(name, pixels[part], labels[part]) for name, part in bounds.items())
    return train, calibration, test


def write_split(split: Split, folder: Path) -> Path:
    """Write one split as Parquet: a column per pixel, and `label`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    columns = {name: split.pixels[:, index] for index, name in enumerate(PIXELS)}
    path = folder / f"{split.name}.parquet"
    pq.write_table(pa.table(columns | {"label": split.labels}), path)
    return path


def shifted(pixels: Pixels, *, seed: int) -> Pixels:
    """The same digits from a tilted, noisy scanner: turned by 25 degrees, with grey noise."""
    import cv2

    generator = np.random.default_rng(seed)
    turn = cv2.getRotationMatrix2D((3.5, 3.5), 25, 1.0)
    turned = np.stack([cv2.warpAffine(image, turn, (8, 8)) for image in pixels.reshape(-1, 8, 8)])
    noisy = turned + generator.normal(0, 2.0, turned.shape).clip(0)
    return np.asarray(noisy.clip(0, 16).round().reshape(-1, 64), dtype=np.float32)


def column_major(pixels: Pixels) -> Pixels:
    """The same pixels column by column: what an exporter with the other image layout would produce."""
    return np.ascontiguousarray(pixels.reshape(-1, 8, 8).transpose(0, 2, 1).reshape(-1, 64))

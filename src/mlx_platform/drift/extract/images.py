"""Images as numbers: size, light and colours."""

from typing import Any

import numpy as np

from mlx_platform.core.tensors import Array
from mlx_platform.inference.steps.image import decode_image, opencv
from mlx_platform.inference.steps.step import CellError

COLOURS = "colours"
_CHANNELS = ("blue", "green", "red")  # as OpenCV orders them
_LEVELS = 32
_DRAWN = 8
"""Values that are taken of each channel of an image, at equal steps from its darkest to its brightest."""
_RANKS = (np.arange(_DRAWN) + 0.5) / _DRAWN
_SCALARS = ("width", "height", "aspect", "brightness", "contrast", *reversed(_CHANNELS))


def watch_images(name: str, column: Array, max_bytes: int) -> dict[str, Array]:
    """Size, light and colours of images [rows]; one that cannot be decoded has none of them.

    Width, height and aspect (width / height); mean and deviation of grey and the mean of each channel, 0 to
    255; and the colour histogram as `NAME.colours#...`.
    """
    scalars = np.full((len(column), len(_SCALARS)), np.nan)
    colours = np.full((len(column), len(_CHANNELS) * _DRAWN), np.nan)
    for row, cell in enumerate(column):
        try:
            image = np.ascontiguousarray(decode_image(cell, name, row, max_bytes))
        except CellError:
            continue
        scalars[row], colours[row] = _measure(image)
    found = {f"{name}.{what}": _whole(scalars[:, at]) for at, what in enumerate(_SCALARS)}
    members = [f"{channel}{number}" for channel in _CHANNELS for number in range(_DRAWN)]
    for at, member in enumerate(members):
        found[f"{name}.{COLOURS}#{member}"] = _whole(colours[:, at])
    return found


def _measure(image: Array) -> tuple[list[float], list[float]]:
    """The scalars, and the colours as levels from 0 to 31."""
    cv2 = opencv()
    height, width = image.shape[:2]
    grey = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
    brightness, contrast = (float(found[0, 0]) for found in cv2.meanStdDev(grey))
    blue, green, red, _ = cv2.mean(image)
    drawn = [_drawn(image, channel, cv2) for channel in range(len(_CHANNELS))]
    scalars = [width, height, width / height, brightness, contrast, red, green, blue]
    return scalars, [float(level) for levels in drawn for level in levels]


def _drawn(image: Array, channel: int, cv2: Any) -> list[int]:
    counts = cv2.calcHist([image], [channel], None, [_LEVELS], [0, 256]).reshape(-1)
    reach = np.cumsum(counts.astype(np.float64))
    levels: list[int] = np.searchsorted(reach, _RANKS * reach[-1], side="right").tolist()
    return levels


def _whole(values: Array) -> Array:
    """Whole numbers as such where no image is missing."""
    if len(values) and np.isfinite(values).all() and (values == np.rint(values)).all():
        return values.astype(np.int64)
    return values

"""The image step: decode, resize and normalise with OpenCV, whose decoders are native and release the GIL."""

import os
from typing import Any

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array
from mlx_platform.inference.steps.step import Batch, CellError, GoOn, Options, Site, Step, for_ever

_MAX_PIXELS = 32 << 20  # more than cameras make, and half a second of decoding
_CHANNELS = {"RGB": 3, "BGR": 3, "GRAY": 1}
_RESAMPLING = {"nearest": 0, "linear": 1, "cubic": 2, "area": 3}  # OpenCV's own numbers


def opencv() -> Any:
    """OpenCV, told before its first import how many pixels a decoder may unpack from a small file."""
    os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(_MAX_PIXELS))
    # What its decoders have to say of somebody's bytes, the error says.
    os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")
    import cv2

    return cv2


def decode_image(cell: Any, column: str, row: int, max_bytes: int) -> Array:
    """One image as uint8 [height, width, 3] in OpenCV's order BGR; an array is taken to be RGB or grey.

    Raises:
        CellError: missing, too large, or nothing that OpenCV can decode.
    """
    cv2 = opencv()
    if isinstance(cell, np.ndarray):
        return _from_array(cell, column, row)
    if not isinstance(cell, bytes):
        raise CellError(column, row, "the image is missing" if cell is None else "the cell is no image")
    if len(cell) > max_bytes:
        raise CellError(column, row, f"the image has {len(cell):,} bytes, more than {max_bytes:,}")
    try:
        image = cv2.imdecode(np.frombuffer(cell, np.uint8), cv2.IMREAD_COLOR) if cell else None
    except cv2.error:
        image = None
    if image is None:
        most = f"{_MAX_PIXELS >> 20} million pixels"
        raise CellError(column, row, f"the bytes are no image that can be decoded of at most {most}")
    decoded: Array = image
    return decoded


def _from_array(cell: Array, column: str, row: int) -> Array:
    if cell.dtype != np.uint8 or cell.ndim not in {2, 3} or (cell.ndim == 3 and cell.shape[2] not in {1, 3}):
        raise CellError(column, row, "an image array must be uint8 [height, width] or [height, width, 3]")
    if not cell.size:
        raise CellError(column, row, "the image has no pixels")
    if cell.ndim == 2 or cell.shape[2] == 1:
        return np.repeat(cell.reshape(*cell.shape[:2], 1), 3, axis=2)
    return cell[:, :, ::-1]


class ImageStep(Step):
    """`image`: encoded bytes or uint8 arrays to a float tensor.

    value = (pixel * scale - mean) / std, per channel in the order of `channels`.
    """

    kind = "image"
    cheap = False

    def __init__(self, options: Options, site: Site) -> None:
        self._column = options.text("column", "image")
        self._input = site.input(options.text("input"))
        size = options.numbers("size", ())
        self._channels = options.choice("channels", _CHANNELS, "RGB")
        self._layout = options.choice("layout", ("NCHW", "NHWC"), "NCHW")
        self._resampling = options.choice("resize", _RESAMPLING, "linear")
        scale = float(options.take("scale", (int, float), 1 / 255))
        mean = options.numbers("mean", (0.0,))
        std = options.numbers("std", (1.0,))
        options.done()
        count = _CHANNELS[self._channels]
        if len(size) != 2 or min(size) < 1 or any(side != int(side) for side in size):
            raise UsageError("Step 'image' needs size = [height, width].")
        if {len(mean), len(std)} - {1, count} or 0.0 in std:
            raise UsageError(f"Step 'image': mean and std take 1 or {count} numbers, and std no zero.")
        self._size = (int(size[0]), int(size[1]))
        self._tables = _tables(count, scale, mean, std)
        self._max_bytes = site.max_image_bytes
        self.takes = {self._column: "image"}
        self.makes = (self._input.name,)

    def __call__(self, batch: Batch) -> Batch:
        return self.run(batch, for_ever)

    def run(self, batch: Batch, go_on: GoOn) -> Batch:
        cells = batch[self._column]
        height, width = self._size
        planes = len(self._tables)
        shape = (height, width, planes) if self._layout == "NHWC" else (planes, height, width)
        pixels = np.empty((len(cells), *shape), dtype=np.float32)
        for row, cell in enumerate(cells):
            go_on()
            self._fill(pixels[row], decode_image(cell, self._column, row, self._max_bytes))
        return batch | {self._input.name: pixels.astype(self._input.numpy_type, copy=False)}

    def _fill(self, out: Array, image: Array) -> None:
        """One decoded image into its place of the tensor, plane by plane."""
        cv2 = opencv()
        height, width = self._size
        image = np.ascontiguousarray(image)
        if image.shape[:2] != self._size:
            image = cv2.resize(image, (width, height), interpolation=_RESAMPLING[self._resampling])
        if self._channels == "GRAY":
            planes = [cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)]
        else:
            planes = cv2.split(image)
            planes = planes[::-1] if self._channels == "RGB" else planes
        for number, (plane, table) in enumerate(zip(planes, self._tables, strict=True)):
            if self._layout == "NHWC":
                out[:, :, number] = cv2.LUT(plane, table)
            else:
                cv2.LUT(plane, table, dst=out[number])


def _tables(count: int, scale: float, mean: tuple[float, ...], std: tuple[float, ...]) -> list[Array]:
    """What each of the 256 values of a pixel becomes, FP32 [256] per channel: looked up, not computed."""
    values = np.arange(256, dtype=np.float32) * np.float32(scale)
    means = np.broadcast_to(np.asarray(mean, dtype=np.float32), count)
    stds = np.broadcast_to(np.asarray(std, dtype=np.float32), count)
    return [(values - means[channel]) / stds[channel] for channel in range(count)]

import cv2
import numpy as np
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import TensorSpec, text_column
from mlx_platform.inference.steps.catalog import PRE, make_step
from mlx_platform.inference.steps.step import CellError, Site

SITE = Site((TensorSpec("pixels", "FP32", (None, None, None, None)),), (), (), 100, 10_000)
RED = np.zeros((4, 6, 3), np.uint8)
RED[:, :, 0] = 255  # as RGB


def image(**options):
    return make_step("image", {"size": [4, 6]} | options, SITE, PRE)


def png(rgb):
    return cv2.imencode(".png", rgb[:, :, ::-1])[1].tobytes()


def run(step, *cells):
    return step({"image": text_column(list(cells))})["pixels"]


def test_a_file_and_an_array_give_the_same_tensor():
    pixels = run(image(), png(RED), RED)

    assert pixels.shape == (2, 3, 4, 6)
    assert pixels.dtype == np.float32
    assert pixels.flags.c_contiguous
    assert (pixels[0] == pixels[1]).all()
    assert pixels[0, :, 0, 0].tolist() == [1, 0, 0]


def test_channel_order_layout_and_normalisation_are_declared():
    pixels = run(image(channels="BGR", layout="NHWC", scale=1, mean=[0, 0, 5], std=[1, 1, 10]), png(RED))

    assert pixels.shape == (1, 4, 6, 3)
    assert pixels[0, 0, 0].tolist() == [0, 0, 25]


def test_grey_images_have_one_channel():
    assert run(image(channels="GRAY"), np.full((4, 6), 51, np.uint8)) == pytest.approx(0.2)


def test_images_are_resized():
    assert run(image(size=[2, 3]), png(RED), RED[:2]).shape == (2, 3, 2, 3)


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        (None, "missing"),
        ("text", "no image"),
        (b"", "no image that can be decoded"),
        (b"\x89PNG\r\n\x1a\n" + b"0" * 50, "no image that can be decoded"),
        (b"0" * 10_001, "10,001 bytes, more than 10,000"),
        (np.zeros((4, 6), np.float32), "uint8"),
        (np.zeros((0, 6, 3), np.uint8), "no pixels"),
    ],
)
def test_a_cell_that_is_no_image_is_named(cell, problem):
    with pytest.raises(CellError, match=problem) as caught:
        run(image(), png(RED), cell)

    assert caught.value.row == 1


@pytest.mark.parametrize(
    "options",
    [{"size": [4]}, {"size": [0, 3]}, {"std": [0]}, {"mean": [1, 2]}, {"channels": "CMYK"}, {"scale": "1"}],
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(UsageError):
        image(**options)


@pytest.mark.parametrize("channels", ["RGB", "BGR"])
def test_the_table_gives_the_very_bits_of_the_arithmetic(channels):
    picture = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])

    pixels = run(image(channels=channels, mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]), picture)

    ordered = picture if channels == "RGB" else picture[:, :, ::-1]
    expected = (ordered.astype(np.float32) * np.float32(1 / 255) - mean) / std
    assert (pixels[0] == expected.transpose(2, 0, 1)).all()

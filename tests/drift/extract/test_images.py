import cv2
import numpy as np
import pytest

from mlx_platform.core.settings import DriftSettings
from mlx_platform.core.tensors import text_column
from mlx_platform.drift.counts import count
from mlx_platform.drift.extract.images import watch_images
from mlx_platform.drift.profile import build_profile
from mlx_platform.drift.verdict import Level, compare


def png(pixels):
    return cv2.imencode(".png", pixels)[1].tobytes()


@pytest.fixture(scope="module")
def photos():
    """Cut-outs of a real photograph, as its camera saw it."""
    from sklearn.datasets import load_sample_image

    photo = load_sample_image("china.jpg")
    generator = np.random.default_rng(0)
    corners = zip(generator.integers(0, 380, 400), generator.integers(0, 590, 400), strict=True)
    return [np.ascontiguousarray(photo[y : y + 40, x : x + 40]) for y, x in corners]


def judge(baseline, window):
    profile = build_profile(watch_images("image", text_column(baseline), 1 << 20))
    found = compare(
        profile, count(profile, watch_images("image", text_column(window), 1 << 20)), DriftSettings()
    )
    return {feature.name: feature.level for feature in found}


def test_size_light_and_colours_are_measured():
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[:, :4] = (0, 0, 200)  # red, as OpenCV orders channels

    found = watch_images("i", text_column([png(pixels), b"no image"]), 1 << 20)

    assert found["i.aspect"].tolist() == pytest.approx([2.0, np.nan], nan_ok=True)
    assert [found[f"i.{channel}"][0] for channel in ("red", "green", "blue")] == [100, 0, 0]
    assert found["i.contrast"][0] == found["i.brightness"][0] > 0
    assert [found[f"i.colours#red{at}"][0] for at in range(8)] == [0] * 4 + [25] * 4
    assert np.isnan(found["i.colours#blue0"][1])


def test_swapped_channels_are_a_drift_of_colours_though_not_of_size(photos):
    swapped = [np.ascontiguousarray(photo[:, :, ::-1]) for photo in photos[200:]]

    alike, other = judge(photos[:200], photos[200:]), judge(photos[:200], swapped)

    assert Level.DRIFT not in alike.values()
    assert other["image.colours"] is Level.DRIFT
    assert other["image.width"] is Level.OK

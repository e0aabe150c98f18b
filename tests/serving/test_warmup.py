import itertools
import shutil
import time

import pytest

from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import SPEC, open_package, seal
from mlx_platform.serving import tuning
from mlx_platform.serving.batch_size import BatchSize
from mlx_platform.serving.padding import Padding
from mlx_platform.serving.signature import Signature
from mlx_platform.serving.warmup import WarmUp, warm_up


def warmed(model):
    return warm_up(model, Signature.of(model.spec.inputs, model.spec.outputs), 32)


def test_a_small_model_is_timed_and_runs_on_the_event_loop(load):
    warm = warmed(load("table"))
    assert sorted(warm.seconds) == [1, 8, 32]
    assert warm.rowwise
    assert warm.inline_cells == 32 * 4


@pytest.mark.parametrize(
    ("seconds", "rows"),
    [
        ({1: 0.0002, 32: 0.001}, 32),
        ({1: 0.0004, 32: 0.001}, 0),
        ({1: 0.0002, 8: 0.001, 32: 0.003}, 8),
        ({}, 0),
    ],
)
def test_only_runs_that_were_seen_to_be_fast_happen_on_the_event_loop(seconds, rows):
    assert WarmUp(seconds, rowwise=True, size=BatchSize(32), cells=5).inline_cells == 5 * rows


def test_a_model_that_mixes_rows_is_found_out(load):
    assert not warmed(load("column_mean")).rowwise


def test_a_model_with_a_fixed_number_of_rows_is_never_joined(load):
    warm = warmed(load("double_pair"))
    assert not warm.rowwise
    assert list(warm.seconds) == [2]


def test_sequences_whose_mask_is_heeded_may_be_filled_up(load):
    warm = warmed(load("masked_mean"))
    assert warm.padding == Padding({"ids": 0, "mask": 0}, {"doubled": (1,)})


def test_sequences_whose_mask_is_not_heeded_may_not(load):
    warm = warmed(load("unmasked_mean"))
    assert warm.rowwise
    assert warm.padding is None


def test_a_model_that_says_nothing_about_filling_up_is_not_tried(load):
    assert warmed(load("identity")).padding is None


@pytest.mark.parametrize(("value", "proven"), [(0, True), (1, False)])
def test_what_a_package_declares_is_proven_like_anything_else(packages, tmp_path, value, proven):
    """The sums of a sequence: filling up with zeros changes none, with ones all."""
    folder = tmp_path / "sums"
    shutil.copytree(packages["sums"], folder)
    with (folder / SPEC).open("a") as file:
        file.write(f"[padding]\nx = {value}\n")
    seal(folder)
    warm = warmed(Model.load(open_package(folder), name="sums", device="cpu", threads=1))
    assert (warm.padding == Padding({"x": value}, {})) is proven


def test_the_size_of_a_batch_can_be_left_to_measuring(load):
    model = load("masked_mean")
    signature = Signature.of(model.spec.inputs, model.spec.outputs)
    warm = warm_up(model, signature, None)
    assert warm.size.bound in {"throughput", "budget", "time", "memory"}
    assert warm.size.rows in warm.seconds
    assert warm.cells == 2 * 16
    assert tuning.policy(ServingSettings(), model.session, warm).max_cells == warm.size.rows * warm.cells


def test_where_no_input_can_be_made_nothing_is_concluded(load):
    warm = warmed(load("kinds"))
    assert warm == WarmUp({}, rowwise=True, size=BatchSize(32))


def test_what_else_the_machine_does_takes_no_part_in_the_times(load, monkeypatch):
    model = load("affine")
    run, calls = model.run, itertools.count()

    def busy(*arguments, **options):
        if next(calls) % 3:
            time.sleep(0.005)
        return run(*arguments, **options)

    monkeypatch.setattr(model, "run", busy)
    assert max(warmed(model).seconds.values()) < 0.005

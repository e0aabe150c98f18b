import os
from pathlib import Path

import numpy as np
import pytest
from smaller import quantize

from mlx_platform.quantize import cache as cache_module
from mlx_platform.quantize.cache import KEPT, CalibrationCache, Recalled
from mlx_platform.quantize.calibrate import Histogram
from mlx_platform.quantize.rule import Rule


def histogram_of(*values: float, extremes_only: bool = False) -> Histogram:
    histogram = Histogram(extremes_only=extremes_only)
    histogram.add(np.float32(values))
    return histogram


class Runs:
    """A calibration that counts how often it is run."""

    def __init__(self, *, extremes_only: bool = False) -> None:
        self.count = 0
        self.extremes_only = extremes_only

    def __call__(self) -> dict[str, Histogram]:
        self.count += 1
        return {
            "x": histogram_of(-1, 0.5, 3.25, extremes_only=self.extremes_only),
            "zeros": histogram_of(0, 0, extremes_only=self.extremes_only),
            "never": Histogram(extremes_only=self.extremes_only),
        }


TENSORS = ["x", "zeros", "never"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return add_model(tmp_path / "model.onnx", b"")


def add_model(path: Path, more: bytes) -> Path:
    import onnx

    model = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], []), producer_name=more.decode())
    onnx.save(model, path)
    return path


def ask(cache: CalibrationCache, model: Path, run: Runs, tensors: list[str] = TENSORS) -> Recalled:
    return cache.recall(model, tensors, run, extremes_only=run.extremes_only)


def same(one: Histogram, other: Histogram) -> bool:
    return np.array_equal(one.bins, other.bins) and (one.count, one.lowest, one.highest, one.limit) == (
        other.count,
        other.lowest,
        other.highest,
        other.limit,
    )


def test_what_was_seen_comes_back_as_it_was(tmp_path: Path, model: Path) -> None:
    cache, run = CalibrationCache(tmp_path / "cache", "rows"), Runs()

    first, again = ask(cache, model, run), ask(cache, model, run)

    assert (first.before, again.before, run.count) == (False, True, 1)
    assert list(again.seen) == TENSORS
    assert all(same(first.seen[name], again.seen[name]) for name in TENSORS)


def test_a_restored_histogram_goes_on_counting(tmp_path: Path, model: Path) -> None:
    cache, run = CalibrationCache(tmp_path / "cache", "rows"), Runs()
    both = [ask(cache, model, run).seen["x"] for _ in range(2)]

    for histogram in both:
        histogram.add(np.float32([0.1, 900.0]))

    assert same(*both)


def test_other_rows_models_and_tensors_are_run_anew(tmp_path: Path, model: Path) -> None:
    run, folder = Runs(), tmp_path / "cache"
    other = add_model(tmp_path / "other.onnx", b"other")

    ask(CalibrationCache(folder, "rows"), model, run)
    ask(CalibrationCache(folder, "other rows"), model, run)
    ask(CalibrationCache(folder, "rows"), other, run)
    ask(CalibrationCache(folder, "rows"), model, run, ["x"])

    assert run.count == 4


@pytest.mark.parametrize("part", ["cpu_flags", "SCHEMA"])
def test_another_processor_or_version_is_run_anew(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    cache, run = CalibrationCache(tmp_path / "cache", "rows"), Runs()

    ask(cache, model, run)
    monkeypatch.setattr(cache_module, part, {"cpu_flags": lambda: frozenset({"none"}), "SCHEMA": "v9"}[part])
    ask(cache, model, run)

    assert run.count == 2


def test_histograms_serve_where_extremes_are_enough_and_not_the_other_way_round(
    tmp_path: Path, model: Path
) -> None:
    cache, bare, full = CalibrationCache(tmp_path / "cache", "rows"), Runs(extremes_only=True), Runs()

    assert not ask(cache, model, bare).before
    assert not ask(cache, model, full).before
    (tmp_path / "fresh").mkdir()
    fresh = CalibrationCache(tmp_path / "fresh", "rows")
    ask(fresh, model, full)
    assert ask(fresh, model, bare).before


@pytest.mark.parametrize("damage", ["shorter", "flipped", "empty", "swapped", "folder"])
def test_a_damaged_entry_is_run_anew(tmp_path: Path, model: Path, damage: str) -> None:
    cache, run = CalibrationCache(tmp_path / "cache", "rows"), Runs()
    ask(cache, model, run)
    (entry,) = cache.folder.iterdir()
    content = bytearray(entry.read_bytes())

    if damage == "shorter":
        entry.write_bytes(content[:-9])
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
        entry.write_bytes(content)
    elif damage == "empty":
        entry.write_bytes(b"")
    elif damage == "swapped":
        ask(CalibrationCache(cache.folder, "other rows"), model, run)
        other = next(path for path in cache.folder.iterdir() if path != entry)
        entry.write_bytes(other.read_bytes())
    else:
        entry.unlink()
        entry.mkdir()
    before = run.count

    assert not ask(cache, model, run).before
    assert run.count == before + 1


def test_a_folder_that_cannot_be_written_costs_only_the_time(tmp_path: Path, model: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    run = Runs()

    found = ask(CalibrationCache(tmp_path / "file" / "cache", "rows"), model, run)

    assert run.count == 1
    assert "could not be kept" in found.note


def test_the_oldest_entries_make_room(tmp_path: Path, model: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    for number in range(KEPT + 3):
        (folder / f"{number:03}").write_bytes(b"")
        os.utime(folder / f"{number:03}", (number, number))

    ask(CalibrationCache(folder, "rows"), model, Runs())

    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == KEPT
    assert "003" not in names
    assert f"{KEPT + 2:03}" in names


def test_another_rule_needs_no_other_run(perceptron: Path, digits, tmp_path: Path) -> None:
    def made(rule: Rule, name: str, feeds):
        cache = CalibrationCache(tmp_path / "cache", "digits")
        return quantize(perceptron, tmp_path / name, feeds, digits.feeds()[:2], rule=rule, cache=cache)

    never = iter(())
    first = made(Rule("entropy"), "first", iter(digits.feeds()))
    again = made(Rule("entropy"), "again", never)
    extremes = made(Rule("minmax"), "extremes", never)
    alone = quantize(perceptron, tmp_path / "alone", iter(digits.feeds()), digits.feeds()[:2])

    assert first.path.read_bytes() == again.path.read_bytes()
    assert extremes.path.read_bytes() == alone.path.read_bytes() != first.path.read_bytes()

import os
from types import SimpleNamespace

import pytest

from mlx_platform.core.settings import ServingSettings
from mlx_platform.serving import tuning
from mlx_platform.serving.batch_size import BatchSize
from mlx_platform.serving.warmup import WarmUp

SLOW = WarmUp({1: 0.01, 32: 0.3}, rowwise=True, size=BatchSize(32), cells=4)
QUICK = WarmUp({1: 0.0001, 32: 0.001}, rowwise=True, size=BatchSize(32), cells=4)


@pytest.mark.parametrize(
    ("warm", "settings", "device", "threads", "workers"),
    [
        (SLOW, {}, "cpu", 1, 8),
        (SLOW, {}, "cpu", 4, 2),
        (SLOW, {}, "cpu", 16, 1),
        (SLOW, {"processes": 2}, "cpu", 2, 2),
        (SLOW, {}, "cuda", 4, 1),
        (SLOW, {"workers": 3}, "cuda", 4, 3),
        (QUICK, {}, "cpu", 1, 1),
        (QUICK, {"workers": 2}, "cpu", 1, 2),
    ],
)
def test_slow_models_run_on_all_cores_and_quick_ones_on_one(
    monkeypatch, warm, settings, device, threads, workers
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    session = SimpleNamespace(device=device, threads=threads)
    assert tuning.policy(ServingSettings(**settings), session, warm).workers == workers


def test_only_a_measured_size_bounds_what_is_in_the_rows():
    session = SimpleNamespace(device="cpu", threads=1)
    assert tuning.policy(ServingSettings(), session, SLOW).max_cells == float("inf")
    measured = WarmUp({1: 0.01}, rowwise=True, size=BatchSize(8, "memory"), cells=4)
    policy = tuning.policy(ServingSettings(max_batch_size="auto"), session, measured)
    assert (policy.max_rows, policy.max_cells) == (8, 32)

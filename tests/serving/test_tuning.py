import os
from types import SimpleNamespace

import pytest

from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.serving import tuning
from mlx_platform.serving.batch_size import BatchSize
from mlx_platform.serving.warmup import WarmUp

SLOW = WarmUp({1: 0.01, 32: 0.3}, rowwise=True, size=BatchSize(32), cells=4)


@pytest.mark.parametrize(
    ("settings", "device", "threads", "workers"),
    [
        ({}, "cpu", 1, 8),
        ({}, "cpu", 4, 2),
        ({}, "cpu", 16, 1),
        ({"processes": 2}, "cpu", 2, 2),
        ({}, "cuda", 4, 1),
        ({"workers": 3}, "cuda", 4, 3),
    ],
)
def test_runs_share_the_cores_and_have_a_gpu_for_themselves(monkeypatch, settings, device, threads, workers):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    session = SimpleNamespace(device=device, threads=threads)
    assert tuning.policy(ServingSettings(**settings), session, SLOW).workers == workers


def test_who_sets_a_number_of_workers_gets_them_for_short_runs_too():
    session = SimpleNamespace(device="cpu", threads=1)
    assert tuning.policy(ServingSettings(), session, SLOW).beside_seconds > 0
    assert tuning.policy(ServingSettings(workers=2), session, SLOW).beside_seconds == 0


def test_only_a_measured_size_bounds_what_is_in_the_rows():
    session = SimpleNamespace(device="cpu", threads=1)
    assert tuning.policy(ServingSettings(), session, SLOW).max_cells == float("inf")
    measured = WarmUp({1: 0.01}, rowwise=True, size=BatchSize(8, "memory"), cells=4)
    policy = tuning.policy(ServingSettings(max_batch_size="auto"), session, measured)
    assert (policy.max_rows, policy.max_cells) == (8, 32)

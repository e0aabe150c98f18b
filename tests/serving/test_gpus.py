import sys
from types import SimpleNamespace

import pytest

from mlx_platform.serving import gpus
from mlx_platform.serving.gpus import Gpus


class Nvml:
    """A machine with two GPUs, the second a virtual one that tells nothing of its power."""

    NVML_TEMPERATURE_GPU = 0

    def __init__(self):
        self.reads = 0
        self.lost = set()

    def nvmlInit(self):  # noqa: N802
        pass

    def nvmlDeviceGetCount(self):  # noqa: N802
        self.reads += 1
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        if index in self.lost:
            raise RuntimeError("GPU is lost")
        return index

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        return b"H200" if handle == 0 else "vGPU\x1b[2J"

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        return SimpleNamespace(gpu=37 + handle, memory=5)

    def nvmlDeviceGetMemoryInfo(self, _handle):  # noqa: N802
        return SimpleNamespace(used=3 * 2**30, total=140 * 2**30)

    def nvmlDeviceGetTemperature(self, _handle, _sensor):  # noqa: N802
        return 41

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        if handle == 1:
            raise RuntimeError("Not Supported")
        return 123_456


def by_gpu(samples, number):
    return {sample.name: sample.value for sample in samples if ("gpu", number) in sample.labels}


def test_every_gpu_is_told_in_base_units():
    found = Gpus(Nvml()).samples()
    assert by_gpu(found, "0") == {
        "mlx_gpu_utilization_ratio": 0.37,
        "mlx_gpu_memory_used_bytes": 3 * 2**30,
        "mlx_gpu_memory_total_bytes": 140 * 2**30,
        "mlx_gpu_temperature_celsius": 41,
        "mlx_gpu_power_watts": 123.456,
    }
    assert {sample.kind for sample in found} == {"gauge"}
    assert "mlx_gpu_power_watts" not in by_gpu(found, "1")
    assert by_gpu(found, "1")["mlx_gpu_utilization_ratio"] == 0.38
    assert {dict(sample.labels)["name"] for sample in found} == {"H200", "vGPU\\u001b[2J"}


def test_a_gpu_that_is_lost_has_no_samples_and_the_others_stay(monkeypatch):
    library = Nvml()
    library.lost.add(0)
    found = Gpus(library).samples()
    assert by_gpu(found, "0") == {}
    assert by_gpu(found, "1")


def test_scrapes_that_follow_each_other_closely_share_a_reading(monkeypatch):
    library, now = Nvml(), [100.0]
    monkeypatch.setattr(gpus.time, "monotonic", lambda: now[0])
    watched = Gpus(library)
    watched.samples()
    watched.samples()
    assert library.reads == 1
    now[0] += 1
    watched.samples()
    assert library.reads == 2


def test_without_a_driver_there_is_nothing(monkeypatch):
    def refuse():
        raise OSError("no driver")

    library = Nvml()
    library.nvmlInit = refuse
    assert Gpus(library).samples() == ()
    monkeypatch.setitem(sys.modules, "pynvml", None)  # importing it fails
    assert Gpus().samples() == ()


def test_this_machine_is_asked_through_the_real_library():
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        count = 0
    assert len({dict(sample.labels)["gpu"] for sample in Gpus().samples()}) == count

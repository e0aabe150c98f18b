import sys
from types import ModuleType, SimpleNamespace

import pytest

from mlx_platform.core.errors import UnavailableError
from mlx_platform.serving import memory
from mlx_platform.serving.devices.memory import free_bytes, memory_budget

MIB = 1024 * 1024


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with 1,000 MiB available, in a container that may be set."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: {4000 * 1024} kB\nMemAvailable: {1000 * 1024} kB\n")
    monkeypatch.setattr(memory, "_MACHINE", meminfo)
    monkeypatch.setattr(memory, "_GROUP", tmp_path)

    def contain(limit, used, cache=0):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{used}\n")
        (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\nactive_file 7\n")

    return contain


def test_the_budget_is_what_is_free_less_the_head_room(machine):
    assert memory_budget("cpu", 0, 0.2, weights=0) == 800 * MIB
    assert memory_budget("cpu", 0, 0.2, weights=100 * MIB) == 700 * MIB


def test_processes_on_one_device_share_it(machine):
    assert memory_budget("cpu", 0, 0.2, weights=100 * MIB, share=2) == 300 * MIB


def test_a_configured_limit_is_taken_as_it_is(machine):
    assert memory_budget("cpu", 500 * MIB, 0.2, weights=100 * MIB) == 400 * MIB


def test_a_container_has_no_more_than_its_limit(machine):
    machine(600 * MIB, 300 * MIB, cache=100 * MIB)
    assert free_bytes("cpu") == 400 * MIB
    machine("max", 300 * MIB)
    assert free_bytes("cpu") == 1000 * MIB
    machine(600 * MIB, 700 * MIB)
    assert free_bytes("cpu") == 0


def test_so_it_is_in_a_control_group_of_the_first_version(machine, tmp_path):
    machine("max", 0)
    for name in ("memory.max", "memory.current", "memory.stat"):
        (tmp_path / name).unlink()
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text(f"{900 * MIB}\n")
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text(f"{200 * MIB}\n")
    (tmp_path / "memory" / "memory.stat").write_text(f"inactive_file 3\ntotal_inactive_file {100 * MIB}\n")
    assert free_bytes("cpu") == 800 * MIB


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(machine):
    with pytest.raises(UnavailableError, match=r"needs 964 MiB on cpu, and may use 800 MiB"):
        memory_budget("cpu", 0, 0.2, weights=900 * MIB)


def test_where_nobody_can_say_what_is_free_there_is_no_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_MACHINE", tmp_path / "absent")
    monkeypatch.setattr(memory, "_GROUP", tmp_path)
    assert memory_budget("cpu", 0, 0.2, weights=900 * MIB) == 0


@pytest.fixture
def driver(monkeypatch):
    """NVIDIA's library on a machine with two GPUs, or one whose driver does not answer."""
    module = ModuleType("pynvml")
    module.NVMLError = type("NVMLError", (Exception,), {})
    module.broken = False
    free = {0: 1000 * MIB, 1: 2000 * MIB, "GPU-b": 2000 * MIB}

    def init():
        if module.broken:
            raise module.NVMLError

    def handle(key):
        if key not in free:
            raise module.NVMLError
        return key

    module.nvmlInit, module.nvmlShutdown = init, lambda: None
    module.nvmlDeviceGetHandleByIndex = module.nvmlDeviceGetHandleByUUID = handle
    module.nvmlDeviceGetMemoryInfo = lambda key: SimpleNamespace(free=free[key])
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return module


def test_a_gpu_is_asked_for_its_own_memory_and_its_budget_holds_the_weights(driver):
    assert memory_budget("cuda:1", 0, 0.1, weights=100 * MIB) == 1800 * MIB
    assert free_bytes("tensorrt") == 1000 * MIB


@pytest.mark.parametrize("visible", ["1", "GPU-b", " 1, 0"])
def test_gpus_are_counted_as_cuda_counts_them(driver, monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert free_bytes("cuda") == 2000 * MIB


def test_a_driver_that_does_not_answer_sets_no_limit(driver):
    driver.broken = True
    assert free_bytes("cuda") is None
    assert memory_budget("cuda", 0, 0.1, weights=100 * MIB) == 0
    driver.broken = False
    assert free_bytes("cuda:7") is None

"""ONNX Runtime as it looks on a machine with GPUs, over the real one on this machine's CPU.

What becomes of the devices is written into a file, so that a server in another process can lose one as well:
a line for each that is not well, such as `cuda:1 lost`. `lost` fails every run and every new session;
`sticky` does so in the processes that were there before the line was written, `shaken` fails the runs of the
sessions that were. `full` finds no memory for more than one row, `small` allows a run no row that
holds the number 7, `deadly` ends the process in a run with the
number 7, `absent` comes up as the CPU.
"""

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state

from mlx_platform.inference import session

VARIABLE = "TEST_SIMULATED_GPU"
"""Names the file in the environment of a process that should believe in GPUs."""

_BORN = time.time()
_SHRINK = "memory.enable_memory_arena_shrinkage"
_KINDS = {"CUDAExecutionProvider": "cuda", "TensorrtExecutionProvider": "tensorrt"}


class Gpus:
    """Writes what the simulation reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set()

    def set(self, **states: str) -> None:
        """Say how GPUs are, by name (`cuda`, `cuda_1`); those not named are well."""
        lines = [f"{name.replace('_', ':')} {how}" for name, how in states.items()]
        draft = self.path.with_suffix(".new")
        draft.write_text("\n".join(lines))
        draft.replace(self.path)


class _Session:
    def __init__(self, path: str, options: Any, providers: list[Any], enable_fallback: int) -> None:
        assert not enable_fallback
        first, settings = providers[0] if isinstance(providers[0], tuple) else (providers[0], {})
        self._device = _KINDS.get(first, "cpu")
        if settings.get("device_id", "0") != "0":
            self._device += f":{settings['device_id']}"
        self.providers = [name if isinstance(name, str) else name[0] for name in providers]
        how = self._how()
        if how == "lost" or (how == "sticky" and self._is_older()):
            raise state.Fail("CUDA failure 100: no CUDA-capable device is detected")
        if how == "absent":
            self.providers, self._device = ["CPUExecutionProvider"], "cpu"
        self._young = how == "shaken"
        self._real = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def _how(self) -> str:
        text = Path(os.environ[VARIABLE]).read_text()
        return dict(line.split() for line in text.splitlines()).get(self._device, "well")

    @staticmethod
    def _is_older() -> bool:
        return Path(os.environ[VARIABLE]).stat().st_mtime > _BORN

    def get_providers(self) -> list[str]:
        return self.providers

    def run(self, names: Any, feeds: Any, options: Any = None) -> Any:
        how = self._how()
        if how == "lost" or (how == "sticky" and self._is_older()) or (how == "shaken" and not self._young):
            raise state.Fail("CUDA failure 700: an illegal memory access was encountered")
        if how == "deadly" and any((array == 7).any() for array in feeds.values()):
            os.kill(os.getpid(), signal.SIGSEGV)
        if how == "full" and any(len(array) > 1 for array in feeds.values()):
            raise state.Fail("bfc_arena.cc Failed to allocate memory for requested buffer of size 4096")
        if how == "small" and any((array == 7).any() for array in feeds.values()):
            raise state.Fail("Available memory of 512 is smaller than requested bytes of 4096")
        if options is not None:
            with suppress(RuntimeError):  # it is not asked for
                options.get_run_config_entry(_SHRINK)
                options.add_run_config_entry(_SHRINK, "cpu:0")  # the arena that there is
        return self._real.run(names, feeds, options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Runtime:
    InferenceSession = _Session

    @staticmethod
    def get_available_providers() -> list[str]:
        return [*reversed(_KINDS), "CPUExecutionProvider"]

    def __getattr__(self, name: str) -> Any:
        return getattr(onnxruntime, name)


def simulated_runtime() -> Any:
    """What takes the place of `inference.session.runtime`."""
    return _Runtime()


def use(environment: Mapping[str, str]) -> None:
    """Believe in GPUs from now on, in this process, where the environment says so."""
    if VARIABLE in environment:
        session.runtime = simulated_runtime

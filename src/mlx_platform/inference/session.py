"""ONNX Runtime, held to what was asked: by path, on the chosen device, with a watchdog on every timed run."""

import heapq
import itertools
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlx_platform.core.errors import DeadlineError, NotFoundError, UnavailableError, UsageError
from mlx_platform.core.tensors import Array, Tensors, TensorSpec
from mlx_platform.core.text import did_you_mean, first_line, printable

_ELEMENTS = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float": "FP32",
    "double": "FP64",
    "string": "BYTES",
}  # ONNX Runtime's element types under the protocol's names
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_ERRORS_ONLY = 3
_IDLE = 5.0  # seconds after which an unused watchdog thread ends


def runtime() -> Any:
    """The onnxruntime module, its telemetry switched off before the first import."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    return onnxruntime


class _Watchdog:
    """One thread for all timed runs of a session: it ends those that are late, and itself when it is idle."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._runs: list[list[Any]] = []  # heap of [deadline, number, RunOptions | None]
        self._numbers = itertools.count()
        self._wakes_at = 0.0  # 0 while there is no thread

    def watch(self, options: Any, timeout: float) -> list[Any]:
        entry = [time.monotonic() + timeout, next(self._numbers), options]
        with self._changed:
            heapq.heappush(self._runs, entry)
            if not self._wakes_at:
                self._wakes_at = entry[0]
                threading.Thread(target=self._work, name="mlx-watchdog", daemon=True).start()
            elif entry[0] < self._wakes_at:
                self._changed.notify()
        return entry

    def _work(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                while self._runs and (self._runs[0][2] is None or self._runs[0][0] <= now):
                    options = heapq.heappop(self._runs)[2]
                    if options is not None:
                        options.terminate = True
                self._wakes_at = self._runs[0][0] if self._runs else now + _IDLE
                woken = self._changed.wait(self._wakes_at - now)
                if not woken and not self._runs:
                    self._wakes_at = 0.0
                    return


class Session:
    """A loaded network. `run` may be called from many threads; it releases the GIL while it computes.

    Attributes:
        providers: execution providers in ONNX Runtime's order; the first is the one that was asked for.
        device: "cpu" or "cuda".
        threads: threads of one run.
    """

    def __init__(self, path: Path, *, device: str, threads: int) -> None:
        ort = runtime()
        if not path.is_file():
            raise NotFoundError(f"There is no model {path}.")
        self.device = _choose(device, ort.get_available_providers())
        self.threads = threads or max(1, _cores() // 2)
        try:
            self._session = ort.InferenceSession(
                str(path), _session_options(ort, self.threads), providers=_provider_list(self.device)
            )
        except Exception as error:  # onnxruntime's errors share no base but Exception
            raise UsageError(f"{path} cannot be loaded: {first_line(error)}.") from error
        # Without this a failing run would be repeated on another provider, silently.
        self._session.disable_fallback()
        self.providers: tuple[str, ...] = tuple(self._session.get_providers())
        if device == "auto" and self.providers[0] == _PROVIDERS["cpu"]:
            self.device = "cpu"  # a CUDA build on a machine without a usable GPU
        if self.providers[0] != _PROVIDERS[self.device]:
            raise UnavailableError(
                f"{_PROVIDERS[self.device]} was asked for, but {self.providers[0]} came up.",
                hint="See the driver and CUDA versions that this onnxruntime-gpu needs, or use --device cpu.",
            )
        self.inputs = tuple(_spec(node) for node in self._session.get_inputs())
        self.outputs = tuple(_spec(node) for node in self._session.get_outputs())
        self._output_names = [spec.name for spec in self.outputs]
        self._watchdog = _Watchdog()
        self._new_options = ort.RunOptions
        self._invalid: tuple[type[BaseException], ...] = _input_errors()

    def run(
        self, feeds: Tensors, outputs: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> dict[str, Array]:
        """Compute the outputs (all of them by default) for the feeds.

        Args:
            feeds: arrays by input name.
            outputs: names of the outputs to compute.
            timeout: seconds after which the run is ended between two operators.

        Raises:
            DeadlineError: the run was ended.
            UsageError: the network refuses these feeds, or there is no such output.
            UnavailableError: the device failed or memory ran out.
        """
        names = self._output_names if outputs is None else list(outputs)
        options = watched = None
        if timeout is not None:
            options = self._new_options()
            watched = self._watchdog.watch(options, timeout)
        try:
            values = self._session.run(names, feeds, options)
        except Exception as error:
            raise self._explain(error, names, options, timeout) from error
        finally:
            if watched is not None:
                watched[2] = None
        return dict(zip(names, values, strict=True))

    def _explain(self, error: Exception, names: list[str], options: Any, timeout: float | None) -> Exception:
        if options is not None and options.terminate:
            return DeadlineError(f"The model was still running after {timeout:g} s and was stopped.")
        for name in names:
            if name not in self._output_names:
                return UsageError(
                    f"The model has no output {printable(name, 128)!r}.",
                    hint=did_you_mean(name, self._output_names),
                )
        text = first_line(error)
        if isinstance(error, self._invalid) and "allocat" not in text:
            return UsageError(f"The model refused the input: {text}.")
        return UnavailableError(f"The model failed on {self.device}: {text}.")


def open_session(path: Path, *, device: str = "auto", threads: int = 0) -> Session:
    """Load the network at `path`.

    Args:
        path: an ONNX file; tensors outside it are found beside it.
        device: "auto" takes CUDA where this ONNX Runtime has it, "cuda" insists on it, "cpu" never does.
        threads: threads of one run; 0 takes half of the cores.

    Raises:
        NotFoundError: there is no such file.
        UsageError: no model that can be loaded, or a device that is not there.
        UnavailableError: the device did not come up.
    """
    return Session(path, device=device, threads=threads)


def _cores() -> int:
    # A container may be given fewer cores than the machine has.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _choose(device: str, available: list[str]) -> str:
    if device == "auto":
        return "cuda" if _PROVIDERS["cuda"] in available else "cpu"
    if device not in _PROVIDERS:
        raise UsageError(
            f"There is no device {printable(device, 80)!r}.", hint=did_you_mean(device, (*_PROVIDERS, "auto"))
        )
    if _PROVIDERS[device] not in available:
        raise UsageError(
            "The device cuda was asked for, but this ONNX Runtime cannot use CUDA.",
            hint="Install onnxruntime-gpu in place of onnxruntime, or use --device cpu.",
        )
    return device


def _provider_list(device: str) -> list[Any]:
    if device == "cpu":
        return [_PROVIDERS["cpu"]]
    # The arena would double at each growth and never give back; TF32 would round inputs to 10 bits.
    options = {
        "arena_extend_strategy": "kSameAsRequested",
        "use_tf32": "0",
        "cudnn_conv_algo_search": "DEFAULT",
    }
    return [(_PROVIDERS["cuda"], options), _PROVIDERS["cpu"]]


def _session_options(ort: Any, threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.use_deterministic_compute = True
    options.log_severity_level = _ERRORS_ONLY
    # Spinning threads would take the cores from whoever shares them, such as the server's event loop.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    return options


def _input_errors() -> tuple[type[BaseException], ...]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    # ValueError and TypeError come from the binding, for feeds that are missing or of the wrong kind.
    return (state.InvalidArgument, state.RuntimeException, state.Fail, ValueError, TypeError)


def _spec(node: Any) -> TensorSpec:
    element = node.type.removeprefix("tensor(").removesuffix(")")
    if element not in _ELEMENTS:
        raise UsageError(f"{printable(node.name, 128)!r} has the type {node.type}, which cannot be served.")
    shape = tuple(dim if isinstance(dim, int) and dim > 0 else None for dim in node.shape)
    return TensorSpec(node.name, _ELEMENTS[element], shape)

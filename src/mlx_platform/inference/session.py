"""ONNX Runtime, held to what was asked: by path, on the chosen device, with a watchdog on every timed run."""

import heapq
import itertools
import os
import re
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from mlx_platform.core.errors import DeadlineError, NotFoundError, UnavailableError, UsageError
from mlx_platform.core.tensors import Array, Tensors, TensorSpec
from mlx_platform.core.text import did_you_mean, first_line, printable
from mlx_platform.inference.device import CPU_PROVIDER, Device, choose, provider_list

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
_SILENT = 4  # what goes wrong is raised, and need not be written by the runtime as well
_IDLE = 5.0  # seconds after which an unused watchdog thread ends
_SPIKE_BYTES = 16 * 1024 * 1024  # inputs from which a run's memory may be worth giving back
_SPIKE = 4  # and so many times what is usual

_MAKING = (
    threading.Lock()
)  # the arena of a session is registered with the runtime, where the next would see it

# What runtimes say when memory ran out, and when the device did; a node's name may say anything.
_NODE_NAME = re.compile(r"Name:'[^']*'")
_NO_MEMORY = re.compile(r"alloc|out.of.memory|smaller than requested bytes", re.IGNORECASE)
_OVER_LIMIT = re.compile(r"smaller than requested bytes")
_BROKEN = re.compile(r"cuda (failure|error)|cudaerror|cublas|cudnn|cufft|curand|tensorrt", re.IGNORECASE)


class DeviceError(UnavailableError):
    """The device failed, or is gone: the same inputs would do on another one."""

    code = "device_failed"


class OutOfMemoryError(UnavailableError, MemoryError):
    """There was not enough memory for a run; a smaller one may do."""

    code = "out_of_memory"


class OverLimitError(OutOfMemoryError):
    """A run wanted more memory than the session's limit leaves it, whatever is free beside that."""

    code = "over_memory_limit"


def runtime() -> Any:
    """The onnxruntime module, its telemetry switched off before the first import."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    return onnxruntime


def available_providers() -> list[str]:
    """The execution providers that this ONNX Runtime was built with; not all need work on this machine."""
    names: list[str] = runtime().get_available_providers()
    return names


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
        path: the file that was loaded.
        providers: execution providers in ONNX Runtime's order; the first is the one that was asked for.
        device: "cpu", "cuda", "tensorrt", or a GPU by its number such as "cuda:1".
        fell_back: the device that "auto" tried in vain, or "".
        nodes: how many nodes of the network each provider got; {} on the CPU, which gets all of them.
        threads: threads of one run.
    """

    def __init__(self, path: Path, *, device: str, threads: int, memory: int = 0) -> None:
        ort = runtime()
        if not path.is_file():
            raise NotFoundError(f"There is no model {path}.")
        available = available_providers()
        wanted = choose(device, available)
        self.path = path
        self.threads = threads or max(1, _cores() // 2)
        options = _session_options(ort, self.threads, wanted)
        providers = provider_list(wanted, available, memory)
        limited = memory > 0 and wanted.kind == "cpu"
        try:
            with _MAKING if limited else nullcontext():
                if limited:
                    _limit_arena(ort, options, memory)
                # With its fallback a session that fails would be made again on another provider, silently.
                self._session = ort.InferenceSession(
                    str(path), options, providers=providers, enable_fallback=0
                )
        except Exception as error:  # onnxruntime's errors share no base but Exception
            raise _load_error(error, path, wanted) from error
        self.providers: tuple[str, ...] = tuple(self._session.get_providers())
        came_up = wanted
        if device == "auto" and self.providers[0] == CPU_PROVIDER:
            came_up = Device("cpu")  # a CUDA build on a machine without a usable GPU
        if self.providers[0] != came_up.providers[0]:
            raise DeviceError(
                f"{wanted.providers[0]} was asked for, but {self.providers[0]} came up.",
                hint="See the driver and CUDA versions that this onnxruntime-gpu needs, or use --device cpu.",
            )
        self.device = str(came_up)
        self.fell_back = "" if came_up == wanted else str(wanted)
        self.nodes = {} if came_up.kind == "cpu" else _nodes_by_provider(self._session)
        self._kind, self._arena = came_up.kind, came_up.arena
        self._usual_bytes = 0.0
        self.inputs = tuple(_spec(node) for node in self._session.get_inputs())
        self.outputs = tuple(_spec(node) for node in self._session.get_outputs())
        self._output_names = [spec.name for spec in self.outputs]
        self._watchdog = _Watchdog()
        self._runs: dict[int, Any] = {}  # options of those that go on, by thread
        self._new_options = ort.RunOptions
        self._misfits, self._invalid = _input_errors()

    def run(
        self,
        feeds: Tensors,
        outputs: Sequence[str] | None = None,
        *,
        timeout: float | None = None,
        shrink: bool = False,
    ) -> dict[str, Array]:
        """Compute the outputs (all of them by default) for the feeds.

        Args:
            feeds: arrays by input name.
            outputs: names of the outputs to compute.
            timeout: seconds after which the run is ended between two operators.
            shrink: give back afterwards what runs have left in the arena; only with a timeout.

        Raises:
            DeadlineError: the run was ended.
            UsageError: the network refuses these feeds, or there is no such output.
            OutOfMemoryError: memory ran out; an OverLimitError where the session's own limit was in the way.
            DeviceError: the device failed.
        """
        names = self._output_names if outputs is None else list(outputs)
        session = self._session
        if session is None:
            raise DeviceError(f"The session on {self.device} was closed.")
        options = watched = None
        if timeout is not None:
            options = self._new_options()
            if self._is_spike(feeds) or shrink:
                options.add_run_config_entry("memory.enable_memory_arena_shrinkage", self._arena)
            watched = self._watchdog.watch(options, timeout)
            self._runs[threading.get_ident()] = options
        try:
            values = session.run(names, feeds, options)
        except Exception as error:
            raise self._explain(error, names, options, timeout) from error
        finally:
            if watched is not None:
                watched[2] = None
                del self._runs[threading.get_ident()]
        return dict(zip(names, values, strict=True))

    def stop(self, thread: int) -> None:
        """End the timed run that a thread is in, between two operators: it raises a DeadlineError there."""
        options = self._runs.get(thread)
        if options is not None:
            options.terminate = True

    def close(self) -> None:
        """Give back what the session holds on its device, once the runs that have begun are over."""
        self._session = None

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
        said = _NODE_NAME.sub("", str(error))
        if isinstance(error, MemoryError) or (
            not isinstance(error, self._misfits) and _NO_MEMORY.search(said)
        ):
            kind = OverLimitError if _OVER_LIMIT.search(said) else OutOfMemoryError
            return kind(f"Memory ran out on {self.device}: {text}.")
        broken = self._kind != "cpu" and _BROKEN.search(said)
        if isinstance(error, self._invalid) and not broken:
            return UsageError(f"The model refused the input: {text}.")
        return DeviceError(f"The model failed on {self.device}: {text}.")

    def _is_spike(self, feeds: Tensors) -> bool:
        """Whether the arena should shrink again after this run, which is so much larger than most."""
        size = 0
        for array in feeds.values():
            size += array.nbytes
        usual = self._usual_bytes
        self._usual_bytes = usual + (size - usual) * 0.05
        return size > _SPIKE_BYTES and size > _SPIKE * usual


def open_session(path: Path, *, device: str = "auto", threads: int = 0, memory: int = 0) -> Session:
    """Load the network at `path`.

    Args:
        path: an ONNX file; tensors outside it are found beside it.
        device: "auto" takes CUDA where this ONNX Runtime has it; "cuda", "tensorrt" and "cuda:1" insist on
            it, "cpu" never does.
        threads: threads of one run; 0 takes half of the cores.
        memory: the most bytes that runs may hold at once, on a GPU together with the network's weights; 0
            sets no limit.

    Raises:
        NotFoundError: there is no such file.
        UsageError: no model that can be loaded, or a device that is not there.
        DeviceError: the device did not come up.
        OutOfMemoryError: the network does not fit into its memory.
    """
    return Session(path, device=device, threads=threads, memory=memory)


def _cores() -> int:
    # A container may be given fewer cores than the machine has.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _load_error(error: Exception, path: Path, device: Device) -> Exception:
    text = first_line(error)
    if _NO_MEMORY.search(_NODE_NAME.sub("", text)):
        return OutOfMemoryError(f"{path} does not fit into the memory of {device}: {text}.")
    if device.kind != "cpu" and _BROKEN.search(text):
        return DeviceError(f"{device} failed while {path} was loaded: {text}.")
    return UsageError(f"{path} cannot be loaded: {text}.")


def _nodes_by_provider(session: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for part in session.get_provider_graph_assignment_info():
        counts[part.ep_name] = counts.get(part.ep_name, 0) + len(part.get_nodes())
    return counts


def _session_options(ort: Any, threads: int, device: Device) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.use_deterministic_compute = True
    options.log_severity_level = _SILENT
    # Spinning threads would take the cores from whoever shares them, such as the server's event loop.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    if device.kind != "cpu":
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


def _limit_arena(ort: Any, options: Any, memory: int) -> None:
    """Give the session an arena with a limit: the one that it finds registered when it is made."""
    info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    same_as_requested = 1
    limits = {"max_mem": memory, "arena_extend_strategy": same_as_requested}
    ort.create_and_register_allocator(info, ort.OrtArenaCfg(limits))
    options.add_session_config_entry("session.use_env_allocators", "1")


def _input_errors() -> tuple[tuple[type[BaseException], ...], tuple[type[BaseException], ...]]:
    """What is raised for feeds that do not fit the signature, and for those or values that a node refuses."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    # ValueError and TypeError come from the binding, for feeds that are missing or of the wrong kind.
    misfits = (state.InvalidArgument, ValueError, TypeError)
    return misfits, (*misfits, state.RuntimeException, state.Fail)


def _spec(node: Any) -> TensorSpec:
    element = node.type.removeprefix("tensor(").removesuffix(")")
    if element not in _ELEMENTS:
        raise UsageError(f"{printable(node.name, 128)!r} has the type {node.type}, which cannot be served.")
    shape = tuple(dim if isinstance(dim, int) and dim > 0 else None for dim in node.shape)
    return TensorSpec(node.name, _ELEMENTS[element], shape)

"""The door to ONNX Runtime for what inference does not need: other optimization levels, and its quantizer."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from mlx_platform.core.errors import UndecidedError
from mlx_platform.core.text import printable
from mlx_platform.inference.session import runtime

Level = Literal["basic", "all"]
_ERRORS_ONLY = 3


def start(
    path: Path, *, level: Level = "all", threads: int = 1, save_to: Path | None = None, exact: bool = False
) -> Any:
    """Make a CPU session of a model file.

    Args:
        path: of the ONNX file.
        level: `basic` keeps every tensor of the standard operators; `all` is what serving runs.
        threads: within one operator.
        save_to: where to write the optimized graph; its large weights go to `<save_to>.data`.
        exact: multiply 8-bit numbers slowly on processors on which the fast way overflows.

    Raises:
        UndecidedError: ONNX Runtime cannot load the model.
    """
    onnxruntime = runtime()
    options = onnxruntime.SessionOptions()
    options.use_deterministic_compute = True
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if exact:
        options.add_session_config_entry("session.x64quantprecision", "1")
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_BASIC if level == "basic" else levels.ORT_ENABLE_ALL
    if save_to is not None:
        options.optimized_model_filepath = str(save_to)
        for key, value in (("file_name", f"{save_to.name}.data"), ("min_size_in_bytes", "1024")):
            options.add_session_config_entry(f"session.optimized_model_external_initializers_{key}", value)
    with refused("load"):
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@contextmanager
def refused(verb: str) -> Iterator[None]:
    """Turn what ONNX Runtime and ONNX raise about a model into one of our errors."""
    import google.protobuf.message  # type: ignore[import-untyped]
    import onnx

    runtime()
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    foreign = (
        state.Fail,
        state.InvalidArgument,
        state.InvalidGraph,
        state.InvalidProtobuf,
        state.NoSuchFile,
        state.NotImplemented,
        state.RuntimeException,
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
        google.protobuf.message.DecodeError,
    )
    try:
        yield
    except foreign as error:
        raise UndecidedError(f"ONNX Runtime cannot {verb} the model: {printable(str(error), 400)}") from error


class _Notes(logging.Filter):
    """Keeps what ONNX Runtime's quantizer writes to the root logger away from the program's handlers."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        if f"onnxruntime{os.sep}quantization" not in record.pathname:
            return True
        if record.levelno >= logging.WARNING:
            self.messages.append(printable(record.getMessage()))
        return False


@contextmanager
def quiet() -> Iterator[list[str]]:
    """Collect the quantizer's warnings; everyone else's pass, and the logging set-up stays as it was.

    The placeholder handler is there because `logging.warning` installs one for good where none is.
    """
    root, notes, placeholder = logging.getLogger(), _Notes(), logging.NullHandler()
    root.addFilter(notes)
    root.addHandler(placeholder)
    try:
        yield notes.messages
    finally:
        root.removeHandler(placeholder)
        root.removeFilter(notes)

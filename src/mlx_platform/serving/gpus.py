"""What NVIDIA's management library says of the GPUs of this machine; nothing where there is no driver."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from mlx_platform.core.text import printable
from mlx_platform.serving.metrics import Sample

_KEEP_SECONDS = 0.5  # the library takes milliseconds for a GPU, and several may ask at once


class Gpus:
    """Reads utilisation, memory, temperature and power when a scrape asks.

    What a GPU does not tell (virtual ones tell little) is left out, and a GPU that is lost has no samples.

    Args:
        library: stands for `pynvml`, which is used without it.
    """

    def __init__(self, library: Any = None) -> None:
        self._library = library
        self._usable: bool | None = None
        self._lock = threading.Lock()
        self._kept: tuple[Sample, ...] = ()
        self._read_at = float("-inf")

    def samples(self) -> tuple[Sample, ...]:
        """All gauges of all GPUs, labelled with their index and name."""
        with self._lock:
            if self._usable is None:
                self._usable = self._open()
            if self._usable and time.monotonic() - self._read_at > _KEEP_SECONDS:
                self._kept = tuple(self._read())
                self._read_at = time.monotonic()
            return self._kept

    def _open(self) -> bool:
        try:
            if self._library is None:
                import pynvml  # type: ignore[import-untyped]

                self._library = pynvml
            self._library.nvmlInit()
        except Exception:  # noqa: BLE001 - no driver, no library, no rights: this machine has no GPU to show
            return False
        return True

    def _read(self) -> Iterator[Sample]:
        library = self._library
        for index in range(_told(library.nvmlDeviceGetCount) or 0):
            handle = _told(library.nvmlDeviceGetHandleByIndex, index)
            if handle is not None:
                yield from self._read_one(index, handle)

    def _read_one(self, index: int, handle: Any) -> Iterator[Sample]:
        library = self._library
        name = _told(library.nvmlDeviceGetName, handle) or ""
        shown = printable(name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name), 80)
        labels = (("gpu", str(index)), ("name", shown))

        def gauge(name: str, help_text: str, value: float) -> Sample:
            return Sample(f"mlx_gpu_{name}", help_text, value, labels, "gauge")

        rates = _told(library.nvmlDeviceGetUtilizationRates, handle)
        if rates is not None:
            yield gauge("utilization_ratio", "Share of the time in which a kernel ran.", rates.gpu / 100)
        memory = _told(library.nvmlDeviceGetMemoryInfo, handle)
        if memory is not None:
            yield gauge("memory_used_bytes", "Memory in use, of all processes.", memory.used)
            yield gauge("memory_total_bytes", "Memory of the GPU.", memory.total)
        heat = _told(library.nvmlDeviceGetTemperature, handle, library.NVML_TEMPERATURE_GPU)
        if heat is not None:
            yield gauge("temperature_celsius", "Temperature of the GPU.", heat)
        power = _told(library.nvmlDeviceGetPowerUsage, handle)
        if power is not None:
            yield gauge("power_watts", "Power that the board draws.", power / 1000)


def _told(ask: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, or None where the library has none."""
    try:
        return ask(*arguments)
    except Exception:  # noqa: BLE001 - not supported, lost, no permission: all the same to a gauge
        return None

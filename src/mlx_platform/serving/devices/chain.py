"""A model on the first device of a chain that works, and back on a better one when that recovers.

When a run fails, an input that is known to work tells whose fault it is: where that still runs, the request's
own inputs are to blame and the device stays; where it does not, the session is made anew, once, and after
that the next device of the chain is taken. The run that failed is repeated there as a whole.
"""

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlx_platform.core.errors import DeadlineError, MlxError, UsageError
from mlx_platform.core.tensors import Array, Tensors
from mlx_platform.inference.model import Model
from mlx_platform.inference.session import DeviceError, OutOfMemoryError, Session
from mlx_platform.serving.metrics import Sample
from mlx_platform.serving.warmup import example_feeds

_CHECK_SECONDS = 2.0  # for the known input, which takes milliseconds where all is well
_OPEN_SECONDS = 30.0  # for a session; the callers who wait meanwhile are told at their deadlines
_MOST_BETWEEN_PROBES = 60.0
_MEMORY_FAILURES = 3  # in a row, for a single row each: the runtime's own memory is broken then
_logger = logging.getLogger(__name__)

Open = Callable[[Path, str], Session]


@dataclass(frozen=True, slots=True)
class ChainPolicy:
    """Where to go from the model's own device, and when to look for it again.

    `devices` are the next ones, in order; a lost one is tried again after `probe` seconds, then later and
    later.
    """

    devices: tuple[str, ...] = ()
    probe: float = 5.0


class DeviceChain:
    """Computes batches; see `serving.runner.Runner`. Called on any thread.

    Args:
        model: loaded on its own device, the head of the chain. It is given another session when that fails.
        policy: the rest of the chain.
        open_on: makes a session of a file on a device.
    """

    def __init__(self, model: Model, policy: ChainPolicy, open_on: Open) -> None:
        self._model = model
        self._policy = policy
        self._open = open_on
        home = model.session.device
        self.devices = (home, *(device for device in policy.devices if device != home))
        self.position = 0  # in `devices`; their number when none of them works
        self.failures: Counter[str] = Counter(dict.fromkeys(self.devices, 0))
        self.moves: Counter[str] = Counter(dict.fromkeys((*self.devices, "none"), 0))
        self.rebuilds = 0
        self.out_of_memory = 0
        self._example: Tensors = {}
        self._memory_failures = 0
        self._fresh = False  # made anew after a failure, and nothing has come of it yet
        self._changing = threading.Lock()
        self._closed = threading.Event()
        self._delay = policy.probe
        self._recovered = -math.inf
        self._prober: threading.Thread | None = None

    @property
    def home(self) -> str:
        """The device that the model was loaded on."""
        return self.devices[0]

    @property
    def down(self) -> bool:
        """Whether no device works."""
        return self.position >= len(self.devices)

    @property
    def degraded(self) -> str:
        """The device that computes in the place of the model's own, "none" without any, else ""."""
        if self.position == 0:
            return ""
        return "none" if self.down else self.devices[self.position]

    def prepare(self) -> None:
        """Find an input that works, while the device does."""
        self._example = example_feeds(self._model)

    def run(self, feeds: Tensors, outputs: tuple[str, ...], timeout: float) -> Mapping[str, Array]:
        """The outputs of a batch, from whatever device computes them.

        Raises:
            UsageError: the network does not take these inputs.
            DeadlineError: the time was over.
            OutOfMemoryError: there was not enough memory for them.
            DeviceError: no device of the chain works.
        """
        end = time.monotonic() + timeout
        session = self._current()
        suspected = False
        while True:
            try:
                answer = session.run(feeds, outputs, timeout=end - time.monotonic())
            except OutOfMemoryError as error:
                self._on_full_memory(session, feeds, error)
                raise
            except (DeviceError, UsageError) as error:
                if isinstance(error, UsageError) and session.device == "cpu":
                    raise  # there its word is good
                blameless = self._works(session) if self._example else isinstance(error, UsageError)
                if not blameless:
                    session = self._replace(session, error)
                elif suspected or isinstance(error, UsageError):
                    raise UsageError("The model cannot run these inputs.") from error
                suspected = blameless
            else:
                self._fresh = False
                self._memory_failures = 0
                return answer
            if time.monotonic() >= end:
                raise DeadlineError("The deadline passed while the device was being replaced.")

    def stop(self, thread: int) -> None:
        """End the run that a thread is in; see `Session.stop`."""
        self._model.session.stop(thread)

    def samples(self) -> Iterator[Sample]:
        """What the exposition shows of devices."""
        yield Sample(
            "mlx_degraded", "Steps away from the device that was asked for.", self.position, kind="gauge"
        )
        for index, device in enumerate(self.devices):
            label = (("device", device),)
            yield Sample(
                "mlx_device_active", "1 for the device in use.", int(index == self.position), label, "gauge"
            )
        for device, count in tuple(self.failures.items()):
            label = (("device", device),)
            yield Sample("mlx_device_failures", "Runs that a device failed.", count, label)
        for device, count in tuple(self.moves.items()):
            yield Sample("mlx_device_moves", "Moves to a device.", count, (("device", device),))
        yield Sample("mlx_device_rebuilds", "Sessions made anew on the same device.", self.rebuilds)
        yield Sample("mlx_out_of_memory", "Runs for which memory ran out.", self.out_of_memory)

    def close(self) -> None:
        """Stop looking for devices that recover."""
        self._closed.set()

    def _current(self) -> Session:
        if self.down:
            raise DeviceError("No device of this server works at the moment.")
        return self._model.session

    def _works(self, session: Session, *, shrink: bool = False) -> bool:
        """Whether an input that is known to work still does; taken for granted where there is none.

        With `shrink` the session gives back the memory that earlier runs have left it.
        """
        if not self._example:
            return True
        try:
            answers = session.run(self._example, timeout=_CHECK_SECONDS, shrink=shrink)
        except MlxError:
            return False
        return all(array.dtype.kind != "f" or bool(np.isfinite(array).all()) for array in answers.values())

    def _on_full_memory(self, session: Session, feeds: Tensors, error: MlxError) -> None:
        """Make room for the next try, and the session anew where not even a small input finds memory.

        A large one that finds none is no fault of the device. What earlier runs have left in the arena lies
        in pieces that a run of another size cannot use.
        """
        self.out_of_memory += 1
        if self._example and self._works(session, shrink=True):
            self._memory_failures = 0
            return
        if any(array.ndim and len(array) > 1 for array in feeds.values()):
            return
        self._memory_failures += 1
        if self._memory_failures >= _MEMORY_FAILURES:
            self._memory_failures = 0
            self._replace(session, error)

    def _replace(self, failed: Session, error: MlxError) -> Session:
        """A session that works, the one that another thread has found meanwhile, or a DeviceError."""
        with self._changing:
            current = self._current()
            if current is not failed:
                return current
            self.failures[failed.device] += 1
            _logger.warning("The device %s failed: %s", failed.device, error.message)
            failed.close()  # what it holds on its device may be what a new one needs
            again = () if self._fresh else (self.position,)
            for position in (*again, *range(self.position + 1, len(self.devices))):
                session = self._try(self.devices[position])
                if session is None or not self._works(session):
                    continue
                self._fresh = True
                if position == self.position:
                    self.rebuilds += 1
                self._move(position, session)
                return session
            self._move(len(self.devices), None)
            raise DeviceError("No device of this server works any more.") from error

    def _move(self, position: int, session: Session | None) -> None:
        if session is not None:
            self._model.use(session)
        if position != self.position:
            self.position = position
            name = "none" if self.down else self.devices[position]
            self.moves[name] += 1
            _logger.warning("The model runs on %s now.", "no device" if self.down else name)
        if self.position and self._prober is None and not self._closed.is_set():
            if time.monotonic() - self._recovered > _MOST_BETWEEN_PROBES:
                self._delay = self._policy.probe  # otherwise it fails again and again
            self._prober = threading.Thread(target=self._probe, name="mlx-probe", daemon=True)
            self._prober.start()

    def _try(self, device: str) -> Session | None:
        """A session on a device, None where it cannot be made in time; a driver may never answer."""
        made: list[Session] = []

        def make() -> None:
            try:
                made.append(self._open(self._model.session.path, device))
            except MlxError as error:
                _logger.warning("%s", error.message)

        thread = threading.Thread(target=make, name="mlx-open", daemon=True)
        thread.start()
        thread.join(_OPEN_SECONDS)
        return made[0] if made else None

    def _probe(self) -> None:
        """Go back to a better device as soon as one passes the model's own examination."""
        while not self._closed.wait(self._delay):
            self._delay = min(2 * self._delay, _MOST_BETWEEN_PROBES)
            for position, device in enumerate(self.devices[: self.position]):
                session = self._try(device)
                if session is None or not self._is_right(session):
                    continue
                with self._changing:
                    self._fresh = True
                    self._recovered = time.monotonic()
                    self._move(position, session)
                    if position == 0:
                        self._prober = None
                        return
                break

    def _is_right(self, session: Session) -> bool:
        model = Model(self._model.package, session, name=self._model.name, version=self._model.version)
        return self._works(session) and not model.self_check()

"""Keeps inputs away from the model that have ended the process before.

All inputs that were worked on when a worker died are suspects: they run alone from then on, until they did no
harm. What ends the process twice is refused.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mlx_platform.core.tensors import Array, Tensors
from mlx_platform.serving.feeding.flight_recorder import DIGEST_BYTES, FlightRecorder
from mlx_platform.serving.refusal import Refusal
from mlx_platform.serving.runner import Runner


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request's inputs on their way; `suspect` ones run alone."""

    digest: bytes
    suspect: bool
    place: int | None
    key: int


class Guard:
    """Lives on the event loop, but `run`, which is called on any thread.

    Args:
        runner: what computes.
        recorder: where to note what is worked on.
        on_harmless: told the digest of a suspect that ran.
        suspects: digests that run alone; whoever hears of more adds them.
        refused: digests that do not run at all.
    """

    def __init__(
        self,
        runner: Runner,
        recorder: FlightRecorder,
        on_harmless: Callable[[bytes], None],
        *,
        suspects: set[bytes],
        refused: set[bytes],
    ) -> None:
        self._runner = runner
        self._recorder = recorder
        self._on_harmless = on_harmless
        self._digests: dict[int, bytes] = {}
        self.suspects = suspects
        self.refused = refused

    @property
    def degraded(self) -> str:
        return self._runner.degraded

    @property
    def down(self) -> bool:
        return self._runner.down

    def stop(self, thread: int) -> None:
        self._runner.stop(thread)

    def admit(self, feeds: Tensors) -> Ticket:
        """Let inputs in.

        Raises:
            Refusal: 422; they are in quarantine.
        """
        digest = digest_of(feeds)
        if digest in self.refused:
            raise Refusal(422, "These inputs are in quarantine: the model crashed on them twice.")
        suspect = digest in self.suspects
        key = id(feeds)
        self._digests[key] = digest
        place = None if suspect else self._recorder.begin(digest, alone=False)
        return Ticket(digest, suspect, place, key)

    def release(self, ticket: Ticket, *, answered: bool) -> None:
        """Let inputs out, however it went."""
        self._digests.pop(ticket.key, None)
        self._recorder.end(ticket.place)
        if ticket.suspect and answered:
            self.suspects.discard(ticket.digest)
            self._on_harmless(ticket.digest)

    def run(self, feeds: Tensors, outputs: tuple[str, ...], timeout: float) -> Mapping[str, Array]:
        """The runner's, noted down where a request runs alone."""
        digest = self._digests.get(id(feeds))
        if digest is None:
            return self._runner.run(feeds, outputs, timeout)
        place = self._recorder.begin(digest, alone=True)
        try:
            return self._runner.run(feeds, outputs, timeout)
        finally:
            self._recorder.end(place)


def digest_of(feeds: Tensors) -> bytes:
    """16 bytes that stand for inputs by name, type, shape and value."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name in sorted(feeds):
        array = feeds[name]
        digest.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
        if array.dtype.kind == "O":
            digest.update(repr(array.tolist()).encode("utf-8", "surrogatepass"))
        else:
            digest.update(array.tobytes())
    return digest.digest()

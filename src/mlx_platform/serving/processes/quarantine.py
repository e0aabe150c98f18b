"""Which inputs end workers: suspects after one death, refused after two."""

from mlx_platform.serving.feeding.flight_recorder import FlightRecorder

_MOST = 10_000  # of each kind; the oldest make room


class Quarantine:
    """Counts deaths by digest."""

    def __init__(self) -> None:
        self.suspects: dict[bytes, None] = {}
        self.refused: dict[bytes, None] = {}

    def blame(self, recorder: FlightRecorder) -> tuple[set[bytes], set[bytes]]:
        """What a death makes of the inputs that were worked on: the new suspects, and those now refused.

        Where some ran alone it was one of them; otherwise it may have been any.
        """
        lone, joined = recorder.suspects()
        accused = lone or joined
        refused = {digest for digest in accused if digest in self.suspects}
        suspects = accused - refused
        for digest in refused:
            self.suspects.pop(digest, None)
            _note(self.refused, digest)
        for digest in suspects:
            _note(self.suspects, digest)
        return suspects, refused

    def acquit(self, digest: bytes) -> None:
        """Forget a suspect that ran without harm."""
        self.suspects.pop(digest, None)


def _note(known: dict[bytes, None], digest: bytes) -> None:
    known[digest] = None
    if len(known) > _MOST:
        del known[next(iter(known))]

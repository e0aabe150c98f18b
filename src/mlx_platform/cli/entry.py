"""The console script: as little as possible is loaded before Ctrl-C is taken care of."""

import gc
import os
import signal
import sys
from types import FrameType

_GARBAGE = 20_000  # objects that have come and not gone before it is looked at why; 700 as Python has it


class Interrupts:
    """Remembers Ctrl-C: a library that is being imported may turn it into an error of its own."""

    def __init__(self) -> None:
        self.seen = False
        # A process that was started to ignore Ctrl-C goes on ignoring it.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        self.seen = True
        raise KeyboardInterrupt


def run() -> None:
    """Run the command line and end the process with its exit code."""
    code: int | None = None
    gc.set_threshold(_GARBAGE)  # what is imported stays: to look at all of it again and again is for nothing
    try:
        interrupts = Interrupts()
        if "_MLX_COMPLETE" in os.environ:
            from mlx_platform.cli.completion import respond

            respond()
        from mlx_platform.cli.main import main

        code = main(interrupted=lambda: interrupts.seen)
    except KeyboardInterrupt:
        # A second Ctrl-C would only be in the way of the end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    from mlx_platform.core.errors import INTERRUPTED

    if code is None:
        sys.stderr.write("error: Interrupted.\n")
        code = INTERRUPTED
    if code == INTERRUPTED:
        # An interrupt that passed through exec() makes Python end by the signal itself; callers expect 130.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)

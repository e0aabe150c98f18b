"""The console script: as little as possible is loaded before Ctrl-C is taken care of."""

import os
import sys

from mlx_platform.core.errors import INTERRUPTED


def run() -> None:
    """Run the command line and end the process with its exit code."""
    try:
        from mlx_platform.cli.main import main

        code = main()
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        code = INTERRUPTED
    if code == INTERRUPTED:
        # An interrupt that passed through exec() makes Python end by the signal itself; callers expect 130.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)

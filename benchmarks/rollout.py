"""What rollouts cost and how they judge: every part, or those that `--only` names."""

import argparse
from collections.abc import Callable, Mapping

from reload import reload
from shadow import shadow
from simulation import simulation

PARTS: Mapping[str, Callable[[bool], None]] = {"simulation": simulation, "shadow": shadow, "reload": reload}
"""Each is told whether to be quick: fewer rounds, for a first impression."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(PARTS), action="append", help="a part, such as simulation")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    chosen = parser.parse_args()
    for name in chosen.only or PARTS:
        PARTS[name](chosen.quick)


if __name__ == "__main__":
    main()

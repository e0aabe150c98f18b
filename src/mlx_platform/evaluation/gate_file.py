"""Reading gate files from disk, TOML or YAML."""

from collections.abc import Mapping
from pathlib import Path

from mlx_platform.core.documents import read_document
from mlx_platform.evaluation.gate_lines import toml_lines, yaml_lines
from mlx_platform.evaluation.gate_parser import parse_gates
from mlx_platform.evaluation.gates import GateFile
from mlx_platform.evaluation.metric import Metric
from mlx_platform.evaluation.metrics import NONE


def read_gates(path: Path, *, custom: Mapping[str, Metric] = NONE) -> GateFile:
    """Read a TOML or YAML gate file, which may name metrics of the project's own.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it is neither, too large, or says something that is not known.
    """
    read = read_document(path, "gate file")
    lines = toml_lines(read.text) if path.suffix.lower() == ".toml" else yaml_lines(read.tree)
    return parse_gates(read.content, source=str(path), lines=lines, custom=custom)

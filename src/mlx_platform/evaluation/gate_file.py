"""Reading gate files from disk, TOML or YAML."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.core.text import printable
from mlx_platform.evaluation.gate_lines import Lines, toml_lines, yaml_lines
from mlx_platform.evaluation.gate_parser import parse_gates
from mlx_platform.evaluation.gates import GateFile
from mlx_platform.evaluation.metric import Metric
from mlx_platform.evaluation.metrics import NONE

FILE_CAP = 256 * 1024  # bytes


def read_gates(path: Path, *, custom: Mapping[str, Metric] = NONE) -> GateFile:
    """Read a TOML or YAML gate file, which may name metrics of the project's own.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it is neither, too large, or says something that is not known.
    """
    try:
        with path.open("rb") as file:
            content = file.read(FILE_CAP + 1)
    except FileNotFoundError as error:
        raise NotFoundError(f"The gate file {path} does not exist.") from error
    except OSError as error:
        raise UsageError(f"Cannot read the gate file {path}: {error.strerror}.") from error
    if len(content) > FILE_CAP:
        raise UsageError(f"The gate file {path} is larger than {FILE_CAP // 1024} KiB.")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"The gate file {path} is not UTF-8 text.") from error
    document, lines = _load(text, path)
    return parse_gates(document, source=str(path), lines=lines, custom=custom)


def _load(text: str, path: Path) -> tuple[Any, Lines]:
    if path.suffix.lower() in (".yaml", ".yml", ".json"):
        return _load_yaml(text, path)
    if path.suffix.lower() != ".toml":
        raise UsageError(
            f"The gate file {path} is neither .toml nor .yaml.", hint="Give it the ending of its format."
        )
    try:
        return tomllib.loads(text), toml_lines(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no valid TOML: {error}.") from error


def _load_yaml(text: str, path: Path) -> tuple[Any, Lines]:
    import yaml

    try:
        # A few lines of nested aliases would otherwise unfold to gigabytes.
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, Loader=yaml.SafeLoader)):
            raise UsageError(f"{path} uses YAML aliases (*name), which a gate file may not.")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        _refuse_repeated_keys(root, path)
        return yaml.safe_load(text), yaml_lines(root)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UsageError(f"{path} is no valid YAML: {printable(str(error))}.") from error


def _refuse_repeated_keys(node: Any, path: Path) -> None:
    # YAML lets the last of two equal keys win: a limit that is not the one that somebody reads.
    if node is None or isinstance(node.value, str):
        return
    pairs = [entry if isinstance(entry, tuple) else (None, entry) for entry in node.value]
    keys = [key.value for key, _value in pairs if key is not None and isinstance(key.value, str)]
    for key in keys:
        if keys.count(key) > 1:
            line = node.start_mark.line + 1
            raise UsageError(f"{path}, line {line}: the key {printable(key, 60)!r} is given twice.")
    for _key, value in pairs:
        _refuse_repeated_keys(value, path)

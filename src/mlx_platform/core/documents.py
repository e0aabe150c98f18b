"""Small files that people write, in TOML or YAML: gates, plans."""

from pathlib import Path
from typing import Any

from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.core.text import printable
from mlx_platform.core.values import frozen

FILE_CAP = 256 * 1024  # bytes


@frozen
class Document:
    """What a file says, the text that says it, and of YAML the tree of nodes, which knows its lines."""

    content: Any
    text: str
    tree: Any = None


def read_document(path: Path, what: str) -> Document:
    """Read a file as its ending says.

    Args:
        path: ends in .toml, .yaml, .yml or .json, which is YAML as well.
        what: what the file is called in messages, such as `gate file`.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it is neither, too large, no text, or says something twice.
    """
    try:
        with path.open("rb") as file:
            content = file.read(FILE_CAP + 1)
    except FileNotFoundError as error:
        raise NotFoundError(f"The {what} {path} does not exist.") from error
    except OSError as error:
        raise UsageError(f"Cannot read the {what} {path}: {error.strerror}.") from error
    if len(content) > FILE_CAP:
        raise UsageError(f"The {what} {path} is larger than {FILE_CAP // 1024} KiB.")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"The {what} {path} is not UTF-8 text.") from error
    return _load(text, path, what)


def _load(text: str, path: Path, what: str) -> Document:
    if path.suffix.lower() in (".yaml", ".yml", ".json"):
        return _load_yaml(text, path, what)
    if path.suffix.lower() != ".toml":
        raise UsageError(
            f"The {what} {path} is neither .toml nor .yaml.", hint="Give it the ending of its format."
        )
    import tomllib

    try:
        return Document(tomllib.loads(text), text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no valid TOML: {error}.") from error


def _load_yaml(text: str, path: Path, what: str) -> Document:
    import yaml

    try:
        # A few lines of nested aliases would otherwise unfold to gigabytes.
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, Loader=yaml.SafeLoader)):
            raise UsageError(f"{path} uses YAML aliases (*name), which a {what} may not.")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        _refuse_repeated_keys(root, path)
        return Document(yaml.safe_load(text), text, root)
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

"""Somebody else's `MLmodel`, read as what it is: text from the registry that nobody vouches for."""

from typing import Any

from mlx_platform.core.errors import IntegrityError, UsageError
from mlx_platform.core.text import listed, printable

CAP = 256 * 1024  # bytes
_DEPTH_CAP = 20
_ONNX = "onnx"
_PYFUNC = "python_function"
_INSTEAD = {
    "sklearn": "Save the estimator with skops.io.dump(model, 'model.skops') and run: "
    "mlx register NAME model.skops",
    "pytorch": "Export it with torch.onnx.export and run: mlx register NAME model.onnx",
    "tensorflow": "Convert it with tf2onnx and run: mlx register NAME model.onnx",
}


def network_path(content: bytes, ref: str) -> str:
    """The path of the ONNX file beside an `MLmodel`.

    Args:
        content: the bytes of the `MLmodel`.
        ref: whose it is, for messages.

    Raises:
        IntegrityError: the file cannot be read, or names no file inside its folder.
        UsageError: a model of another flavor; says which, and what to do.
    """
    from mlx_platform.inference.package import is_plain_path

    flavors = _table(_load(content, ref).get("flavors"))
    flavor = flavors.get(_ONNX)
    if flavor is None:
        raise _other_flavor(flavors, ref)
    data = _table(flavor).get("data")
    if not isinstance(data, str) or not is_plain_path(data):
        raise IntegrityError(f"The MLmodel of {ref} names no ONNX file inside its folder.")
    return data


def _other_flavor(flavors: dict[str, Any], ref: str) -> UsageError:
    named = [name for name in flavors if name != _PYFUNC]
    if not named:
        module = str(_table(flavors.get(_PYFUNC)).get("loader_module", ""))
        named = ["pyfunc"] if not module.startswith("mlflow.") else [module.removeprefix("mlflow.")]
    hint = next((_INSTEAD[name] for name in named if name in _INSTEAD), "")
    return UsageError(
        f"{ref} is of MLflow's flavor {listed(named, 5)}: loading it would run its code, and mlx takes "
        "ONNX networks only.",
        hint=hint or "Convert it to ONNX and run: mlx register NAME model.onnx",
        flavors=[printable(name, 80) for name in named[:20]],
    )


def _load(content: bytes, ref: str) -> dict[str, Any]:
    import yaml

    if len(content) > CAP:
        raise IntegrityError(f"The MLmodel of {ref} has more than {CAP:,} bytes.")
    try:
        text = content.decode()
        depth = 0
        # A few lines of nested aliases unfold to gigabytes, and a few thousand brackets end the parser.
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEPTH_CAP or isinstance(event, yaml.AliasEvent):
                raise IntegrityError(f"The MLmodel of {ref} is nested too deep, or uses YAML aliases.")
        return _table(yaml.safe_load(text))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise IntegrityError(f"The MLmodel of {ref} is no YAML that can be read.") from error


def _table(value: Any) -> dict[str, Any]:
    return {str(key): inner for key, inner in value.items()} if isinstance(value, dict) else {}

"""The page at `/`: what is served here, and how to ask it."""

import orjson

from mlx_platform.core.text import listed, printable
from mlx_platform.inference.model import Model
from mlx_platform.serving.protocol_v2 import example_request
from mlx_platform.serving.routes import ROUTES
from mlx_platform.serving.signature import Signature

_SHOWN_COLUMNS = 12


def describe_routes(model: Model, signature: Signature, host: str) -> str:
    """Plain text for people who open the server's address."""
    lines = [f"{printable(model.name)} version {printable(model.version)}", f"digest {model.digest}", ""]
    lines += [f"takes  {printable(str(spec))}" for spec in signature.inputs.values()]
    lines += [f"gives  {printable(str(spec))}" for spec in signature.outputs.values()]
    if model.columns:
        lines.append(f"columns of /predict: {listed(model.columns, _SHOWN_COLUMNS)}")
    lines.append("")
    lines += [f"{method:<5} {template}" for template, method in ROUTES.items()]
    example = example_request(signature)
    if example is not None:
        body = orjson.dumps(example).decode()
        url = f"http://{printable(host, 200)}/v2/models/{printable(model.name)}/infer"
        lines += ["", f"curl -H 'Content-Type: application/json' -d '{body}' {url}"]
    return "\n".join(lines) + "\n"

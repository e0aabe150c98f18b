"""The pages for people who open the server's address: what is served here, and how to ask it."""

import shlex
from collections.abc import Iterable
from html import escape
from typing import Any

import orjson

from mlx_platform.core.tensors import TensorSpec
from mlx_platform.core.text import listed, printable
from mlx_platform.inference.model import Model
from mlx_platform.serving.metadata import example_request
from mlx_platform.serving.routes import MODEL, ROUTES
from mlx_platform.serving.signature import Signature

_SHOWN_COLUMNS = 12
_EXAMPLE_COLUMNS = 64
_CELLS: dict[str, Any] = {"number": 0.0, "category": "", "text": "", "image": "<base64>"}
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1d2733}"
    "code,pre{font:14px/1.5 ui-monospace,monospace}pre{background:#f2f4f7;padding:1rem;overflow:auto}"
    "table{border-collapse:collapse}td,th{text-align:left;padding:.2rem 1.5rem .2rem 0;vertical-align:top}"
    "h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2rem}"
)


def describe_routes(model: Model, signature: Signature, host: str) -> str:
    """Plain text."""
    lines = [f"{printable(model.name)} version {printable(model.version)}", f"digest {model.digest}", ""]
    lines += [f"takes  {printable(str(spec))}" for spec in signature.inputs.values()]
    lines += [f"gives  {printable(str(spec))}" for spec in signature.outputs.values()]
    if model.columns:
        lines.append(f"columns of /predict: {listed(model.columns, _SHOWN_COLUMNS)}")
    lines.append("")
    lines += [f"{method:<5} {template}" for template, method in ROUTES.items()]
    example = _infer_example(model, signature, host)
    if example:
        lines += ["", example]
    return "\n".join(lines) + "\n"


def describe_in_html(model: Model, signature: Signature, host: str) -> str:
    """The same as a page, with requests to copy; it loads nothing from anywhere."""
    title = f"{printable(model.name)} version {printable(model.version)}"
    parts = [
        f"<h1>{escape(title)}</h1><p>Digest <code>{escape(model.digest)}</code></p>",
        _predict_section(model, host),
        "<h2>Tensors: the Open Inference Protocol, version 2</h2>",
        _tensor_table("Inputs", signature.inputs.values()),
        _tensor_table("Outputs", signature.outputs.values()),
        _code(_infer_example(model, signature, host)),
        "<h2>Routes</h2>",
        _table(("method", "path"), [(method, template) for template, method in ROUTES.items()]),
        '<p>As OpenAPI: <a href="openapi.json">openapi.json</a></p>',
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>"
    )


def _predict_section(model: Model, host: str) -> str:
    heading = "<h2>Raw rows: POST /predict</h2>"
    if not model.columns:
        return f"{heading}<p>A row is a list of values for the input of the model.</p>"
    kinds = [(name, _kind(model, name)) for name in model.columns]
    parts = [heading, _table(("column", "holds"), kinds)]
    if len(kinds) <= _EXAMPLE_COLUMNS and all(kind in _CELLS for _, kind in kinds):
        body = orjson.dumps({"rows": [{name: _CELLS[kind] for name, kind in kinds}]}).decode()
        parts.append(_code(_curl(host, "/predict", body)))
    return "".join(parts)


def _kind(model: Model, name: str) -> str:
    kind = model.kinds[name]
    return str(kind) if isinstance(kind, TensorSpec) else kind


def _infer_example(model: Model, signature: Signature, host: str) -> str:
    example = example_request(signature)
    if example is None:
        return ""
    return _curl(host, MODEL.format(model=printable(model.name)) + "/infer", orjson.dumps(example).decode())


def _curl(host: str, path: str, body: str) -> str:
    url = f"http://{printable(host, 200)}{path}"
    return f"curl -H 'Content-Type: application/json' -d {shlex.quote(body)} {url}"


def _tensor_table(title: str, specs: Iterable[TensorSpec]) -> str:
    rows = [(spec.name, str(spec).removeprefix(f"{spec.name} ")) for spec in specs]
    return f"<h3>{title}</h3>{_table(('name', 'datatype and shape'), rows)}"


def _table(head: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    lines = [f"<tr><th>{head[0]}</th><th>{head[1]}</th></tr>"]
    for row in rows:
        cells = [f"<td><code>{escape(printable(cell))}</code></td>" for cell in row]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _code(text: str) -> str:
    return f"<pre>{escape(text)}</pre>" if text else ""

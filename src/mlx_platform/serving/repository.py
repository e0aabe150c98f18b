"""The model repository extension for a server that is told by the registry what it serves.

https://github.com/triton-inference-server/server `docs/protocol/extension_model_repository.md`. Clients see
what is there. What they may not do is told to them: which version serves is decided in the registry.
"""

from typing import Any

from mlx_platform.serving.json_body import parse_object
from mlx_platform.serving.refusal import Refusal, malformed
from mlx_platform.serving.router import Router


def parse_body(body: bytes) -> dict[str, Any]:
    """The object of a request to the repository; no body is an empty one.

    Raises:
        Refusal: 400; it is no JSON object.
    """
    return parse_object(body) if body.strip() else {}


def index(router: Router, *, ready_only: bool) -> list[dict[str, str]]:
    """The versions that are there, as the extension lists them."""
    return [
        {"name": served.name, "version": served.version, "state": served.state, "reason": ""}
        for served in router
        if served.state == "READY" or not ready_only
    ]


def wants_ready_only(document: dict[str, Any]) -> bool:
    """Whether a request for the index asks for ready models only.

    Raises:
        Refusal: 400; `ready` is neither true nor false.
    """
    ready = document.get("ready", False)
    if type(ready) is not bool:
        raise malformed("The member ready must be true or false.")
    return ready


def wants_overrides(document: dict[str, Any]) -> bool:
    """Whether a request to load brings parameters, such as a configuration or files of its own.

    Raises:
        Refusal: 400; `parameters` is no object.
    """
    parameters = document.get("parameters", {})
    if type(parameters) is not dict:
        raise malformed("The parameters must be an object.")
    return bool(parameters)


def load(router: Router, name: str, *, overrides: bool) -> None:
    """Answer a wish to load a model: the one that is served is loaded already.

    Args:
        router: what is there.
        name: the model.
        overrides: whether the client brings parameters.

    Raises:
        Refusal: 403; it is another model, or one that the client wants to change.
    """
    if name != router.name or overrides:
        raise Refusal(403, "The registry decides what this server serves: it loads nothing else.")


def unload(router: Router, name: str) -> None:
    """Refuse to unload a model.

    Raises:
        Refusal: 404 for a model that is not there, 403 for the one that is.
    """
    router.named(name)
    raise Refusal(403, "The registry decides what this server serves: to unload it, stop the server.")

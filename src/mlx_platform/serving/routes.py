"""The route table: which paths there are, what they are called in metrics, and which methods they take."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

from mlx_platform.serving.refusal import Refusal

MODEL = "/v2/models/{model}"
VERSION = "/v2/models/{model}/versions/{version}"
REPOSITORY = "/v2/repository"

ROUTES: dict[str, str] = {
    "/": "GET",
    "/docs": "GET",
    "/openapi.json": "GET",
    "/predict": "POST",
    "/feedback": "POST",
    "/v2": "GET",
    "/v2/health/live": "GET",
    "/v2/health/ready": "GET",
    "/v2/models/stats": "GET",
    MODEL: "GET",
    f"{MODEL}/ready": "GET",
    f"{MODEL}/infer": "POST",
    f"{MODEL}/config": "GET",
    f"{MODEL}/stats": "GET",
    VERSION: "GET",
    f"{VERSION}/ready": "GET",
    f"{VERSION}/infer": "POST",
    f"{VERSION}/config": "GET",
    f"{VERSION}/stats": "GET",
    f"{REPOSITORY}/index": "POST",
    f"{REPOSITORY}/models/{{model}}/load": "POST",
    f"{REPOSITORY}/models/{{model}}/unload": "POST",
}
"""Templates and their method; GET includes HEAD."""

_ALIASES = {"/v2/": "/v2"}  # as the protocol's own description writes it

OTHER = "other"
"""What a path that is no route is called in metrics, whatever it is."""


@dataclass(frozen=True, slots=True)
class Match:
    """A route, and the parameters that its path carries."""

    template: str
    method: str
    parameters: Mapping[str, str]


class RouteTable:
    """Finds routes by the raw, still percent-encoded path.

    The paths of the served model are looked up directly; all others are taken apart, piece by piece, so that
    a name with an encoded slash stays one name.
    """

    def __init__(self, model: str, version: str) -> None:
        self._direct: dict[bytes, Match] = {}
        for template, method in ROUTES.items():
            for safe in ("", "/"):
                values = {"model": quote(model, safe=safe), "version": quote(version, safe=safe)}
                path = template.format(**values).encode()
                named = {"model": model, "version": version}
                used = {key: value for key, value in named.items() if f"{{{key}}}" in template}
                self._direct[path] = Match(template, method, used)
        for alias, template in _ALIASES.items():
            self._direct[alias.encode()] = Match(template, ROUTES[template], {})
        self._split = {tuple(template.split("/")): method for template, method in ROUTES.items()}

    def find(self, raw_path: bytes) -> Match | None:
        match = self._direct.get(raw_path)
        return match if match is not None else self._take_apart(raw_path)

    def _take_apart(self, raw_path: bytes) -> Match | None:
        pieces = raw_path.split(b"/")
        for template, method in self._split.items():
            if len(template) != len(pieces):
                continue
            parameters: dict[str, str] = {}
            for want, piece in zip(template, pieces, strict=True):
                text = unquote_to_bytes(piece).decode("utf-8", "replace")
                if want.startswith("{"):
                    parameters[want[1:-1]] = text
                elif want != text:
                    break
            else:
                return Match("/".join(template), method, parameters)
        return None


def check_method(match: Match | None, method: str) -> Match:
    """The route, if it exists and takes the method.

    Raises:
        Refusal: 404 or 405.
    """
    if match is None:
        raise Refusal(404, "There is no such route: GET / lists those there are.")
    if method != match.method and not (method == "HEAD" and match.method == "GET"):
        raise Refusal(405, f"This route takes {match.method}.")
    return match

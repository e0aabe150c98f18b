"""How to reach a server: its address, who one is there, which certificates count, and through which proxy.

The variables are MLflow's own, so that whoever may use the server with MLflow may use it with mlx.
"""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import printable
from mlx_platform.registry.rest_wire import Peer

if TYPE_CHECKING:
    import ssl

_PORTS = {"http": 80, "https": 443}
_TRUE = {"true", "1"}
_PATH = "/%!$&'()*+,;=:@"  # what stands for itself in a path


@dataclass(frozen=True, slots=True)
class Login:
    """`prefix` is the path below which the API lies, `origin` what a plain proxy takes before a target."""

    peer: Peer
    prefix: str
    origin: str
    headers: Mapping[str, str]


def login(uri: str, environment: Mapping[str, str]) -> Login:
    """Understand the URI of a server and the variables that go with it.

    Raises:
        UsageError: a port, a credential or a certificate that cannot be used.
    """
    parts = urlsplit(uri)
    scheme, host = parts.scheme.lower(), parts.hostname or ""
    try:
        port = parts.port or _PORTS[scheme]
        host.encode("idna" if not host.isascii() else "ascii")
    except (ValueError, KeyError) as error:
        raise UsageError(f"The registry names no usable host and port: {printable(host, 100)}.") from error
    shown = f"[{host}]" if ":" in host else host
    proxy = _proxy(scheme, host, environment)
    headers = {"Accept": "application/json", "User-Agent": "mlx-platform"}
    authorization = _authorization(parts.username, parts.password, environment)
    if authorization:
        headers["Authorization"] = authorization
    if workspace := environment.get("MLFLOW_WORKSPACE"):
        headers["X-MLFLOW-WORKSPACE"] = _header(workspace, "MLFLOW_WORKSPACE")
    through = proxy is not None and scheme == "http"
    if proxy and through and proxy[2]:
        headers["Proxy-Authorization"] = proxy[2]
    return Login(
        peer=Peer(host, port, _tls(environment) if scheme == "https" else None, proxy),
        prefix=quote(parts.path.rstrip("/"), safe=_PATH),
        origin=f"http://{shown}:{port}" if through else "",
        headers=headers,
    )


def _authorization(user: str | None, password: str | None, environment: Mapping[str, str]) -> str:
    if user is not None:
        return _basic(unquote(user), unquote(password or ""))
    user, password = (
        environment.get("MLFLOW_TRACKING_USERNAME", ""),
        environment.get("MLFLOW_TRACKING_PASSWORD", ""),
    )
    if user and password:
        return _basic(user, password)
    token = environment.get("MLFLOW_TRACKING_TOKEN", "")
    return f"Bearer {_header(token, 'MLFLOW_TRACKING_TOKEN')}" if token else ""


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _header(text: str, variable: str) -> str:
    if not text.isascii() or not text.isprintable():
        raise UsageError(f"{variable} has characters that no HTTP header may have.")
    return text


def _tls(environment: Mapping[str, str]) -> "Callable[[], ssl.SSLContext]":
    made: list[ssl.SSLContext] = []

    def context() -> "ssl.SSLContext":
        if not made:
            made.append(_tls_context(environment))
        return made[0]

    return context


def _tls_context(environment: Mapping[str, str]) -> "ssl.SSLContext":
    import ssl

    variable = next(
        (
            name
            for name in ("MLFLOW_TRACKING_SERVER_CERT_PATH", "REQUESTS_CA_BUNDLE")
            if environment.get(name)
        ),
        "",
    )
    trusted = environment.get(variable, "")
    client = environment.get("MLFLOW_TRACKING_CLIENT_CERT_PATH", "")
    try:
        folder = bool(trusted) and Path(trusted).is_dir()
        context = ssl.create_default_context(
            cafile=None if folder else trusted or None, capath=trusted if folder else None
        )
        if client:
            variable, trusted = "MLFLOW_TRACKING_CLIENT_CERT_PATH", client
            context.load_cert_chain(client)
    except OSError as error:
        raise UsageError(
            f"{variable} names {printable(trusted)!r}, which holds no certificate that can be read."
        ) from error
    if (
        environment.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in _TRUE
        and variable != "MLFLOW_TRACKING_SERVER_CERT_PATH"
    ):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _proxy(scheme: str, host: str, environment: Mapping[str, str]) -> tuple[str, int, str] | None:
    # The name in capitals can be set by a request to a CGI program, which HTTP_PROXY in lower case cannot.
    uri = environment.get(f"{scheme}_proxy") or environment.get(f"{scheme.upper()}_PROXY") or ""
    excepted = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    if not uri or _excepted(host, excepted):
        return None
    parts = urlsplit(uri if "://" in uri else f"http://{uri}")
    try:
        port = parts.port or 80
    except ValueError:
        port = 0
    if parts.scheme != "http" or not parts.hostname or not port:
        raise UsageError(f"The proxy of the environment is none: {scheme}_proxy must be http://HOST:PORT.")
    credential = _basic(unquote(parts.username), unquote(parts.password or "")) if parts.username else ""
    return parts.hostname, port, credential


def _excepted(host: str, rule: str) -> bool:
    names = [name.strip().lstrip("*").lstrip(".").lower() for name in rule.split(",") if name.strip()]
    if rule.strip() == "*":
        return True
    return any(name and (host == name or host.endswith(f".{name}")) for name in names)

"""Who may use the second listener, and for what."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from mlx_platform.core.errors import UsageError
from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.serving.refusal import Refusal

LOOPBACK = frozenset(("127.0.0.1", "::1", "localhost"))
"""Addresses that only this machine reaches."""

_LEAST_TOKEN = 16
_BEARER = b"bearer "


@dataclass(frozen=True, slots=True)
class Access:
    """Reading is free for this machine; from elsewhere, and to change anything, it takes the token.

    `token` is empty where none is set, and nothing can be changed then. `variable` is where it comes from.
    """

    loopback: bool
    token: bytes
    variable: str

    @classmethod
    def of(cls, settings: ServingSettings, environment: Mapping[str, str]) -> "Access":
        """The rule for the configured address.

        Raises:
            UsageError: others could reach it without a token, or the token is too short to be a secret.
        """
        variable = settings.admin_token_env
        token = environment.get(variable, "") if variable else ""
        loopback = settings.admin_host in LOOPBACK
        if token and (len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable()):
            raise UsageError(
                f"The token in {variable} is no secret: it takes {_LEAST_TOKEN} printable characters.",
                hint="Make one with: openssl rand -hex 32",
            )
        if not loopback and not token:
            raise UsageError(
                f"Without a token the admin listener cannot listen on {settings.admin_host!r}.",
                hint=f"Put a secret into the variable {variable or 'that admin_token_env names'}, "
                "or use admin_host 127.0.0.1 and forward the port.",
            )
        return cls(loopback, token.encode(), variable)

    def check(self, headers: Mapping[bytes, bytes], *, protected: bool) -> None:
        """Let a request pass, or say why not.

        Args:
            headers: names in lower case.
            protected: it changes something, or shows what clients have sent.

        Raises:
            Refusal: 401 without the right token, 403 where no token would do.
        """
        # A page in a browser on this machine could reach us under a name that its author controls.
        if self.loopback and _host(headers.get(b"host")) not in LOOPBACK:
            raise Refusal(403, "The Host header must name this machine.")
        if protected and _is_foreign(headers.get(b"origin")):
            raise Refusal(403, "A page of another origin may not do this.")
        if self.loopback and not protected:
            return
        if not self.token:
            raise Refusal(403, f"This takes a token: start the server with one in {self.variable}.")
        if not hmac.compare_digest(_bearer(headers.get(b"authorization", b"")), self.token):
            raise Refusal(401, "This takes the header Authorization: Bearer TOKEN.")


def _bearer(value: bytes) -> bytes:
    return value[len(_BEARER) :].strip() if value[: len(_BEARER)].lower() == _BEARER else b""


def _host(value: bytes | None) -> str:
    if value is None:
        return "localhost"  # HTTP/1.0 has no Host, and browsers do not speak it
    host = value.decode("latin-1").lower()
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _is_foreign(origin: bytes | None) -> bool:
    if origin is None:
        return False
    try:
        return urlsplit(origin.decode("latin-1")).hostname not in LOOPBACK
    except ValueError:
        return True

"""Calls of MLflow's REST API: JSON there and back, each within its time, refusals turned into our errors."""

import http.client
import json
import re
import ssl
import time
from collections.abc import Mapping
from typing import IO, Any, Literal
from urllib.parse import quote, urlencode

from mlx_platform.core.errors import IntegrityError, MlxError, NotFoundError, UnavailableError
from mlx_platform.core.text import first_line, printable
from mlx_platform.registry.refusals import LostError, translate, unavailable
from mlx_platform.registry.rest_login import Login
from mlx_platform.registry.rest_wire import Answer, Deadline, Request, TooLargeError, Wire

ANSWER_CAP = 64 * 1024 * 1024
_BUSY = {429, 502, 503, 504}
_PAUSES = (0.1, 0.3, 1.0, 2.0)
_API = "/api/2.0/mlflow/"
_ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts/"
_ABSENT = re.compile(rb"\(404\)|NoSuchKey|No such file")
_ABSENT_WITHIN = 4096
_UNKNOWN_ENDPOINT = {"ENDPOINT_NOT_FOUND", "NOT_IMPLEMENTED"}

Method = Literal["GET", "POST", "PATCH", "DELETE"]


class NoEndpointError(UnavailableError):
    """The server does not know what it was asked for: it is older than the question, or no registry."""


class Api:
    """One server.

    Args:
        login: how to reach it.
        shown: its URI, safe to print.
        timeout: seconds for a call, retries included.
    """

    def __init__(self, login: Login, *, shown: str, timeout: float) -> None:
        self._login = login
        self._wire = Wire(login.peer)
        self._shown = shown
        self._timeout = timeout

    def read(self, path: str, query: Mapping[str, Any], doing: str) -> dict[str, Any]:
        """Ask for something; `doing` completes the sentence "Could not ..."."""
        target = f"{_API}{path}?{urlencode(query, doseq=True, quote_via=quote)}" if query else _API + path
        return self._document(self._json("GET", target, None, doing, repeat=True), doing)

    def write(
        self,
        path: str,
        body: Mapping[str, Any],
        doing: str,
        *,
        method: Method = "POST",
        repeat: bool = False,
    ) -> dict[str, Any]:
        """Change something; with `repeat` it may be done twice, and is when an answer is lost."""
        return self._document(self._json(method, _API + path, body, doing, repeat=repeat), doing)

    def upload(self, path: str, content: IO[bytes], size: int, doing: str) -> None:
        """Give the server a file for its artifact store."""
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        request = self._request("PUT", _ARTIFACTS + quote(path), headers, content)
        deadline = Deadline(self._timeout, transfer=True)
        self._judge(self._exchange(request, deadline, doing), doing)

    def fetch(self, path: str, sink: IO[bytes], cap: int, doing: str) -> None:
        """Get a file of at most `cap` bytes out of the server's artifact store.

        Raises:
            NotFoundError: there is none.
        """
        request = self._request("GET", _ARTIFACTS + quote(path), {"Accept": "*/*"})
        deadline = Deadline(self._timeout, transfer=True)
        answer = self._exchange(request, deadline, doing, cap=cap, sink=sink)
        try:
            self._judge(answer, doing)
        except UnavailableError as error:
            # Servers of MLflow 2, and those over S3, say 500 of a file that is not there.
            if answer.status == 500 and _ABSENT.search(answer.body[:_ABSENT_WITHIN]):
                raise NotFoundError(error.message) from error
            raise

    def remove(self, path: str, doing: str) -> None:
        """Delete a folder out of the server's artifact store."""
        request = self._request("DELETE", _ARTIFACTS + quote(path), {})
        self._judge(self._exchange(request, Deadline(self._timeout), doing), doing)

    # Within

    def _json(
        self, method: str, target: str, body: Mapping[str, Any] | None, doing: str, *, repeat: bool
    ) -> Answer:
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        headers = {} if content is None else {"Content-Type": "application/json"}
        request = self._request(method, target, headers, content)
        deadline = Deadline(self._timeout)
        for pause in _PAUSES if repeat else ():
            try:
                answer = self._exchange(request, deadline, doing)
            except LostError:
                if not _wait(pause, deadline):
                    raise
            else:
                if answer.status not in _BUSY or not _wait(pause, deadline):
                    return self._judge(answer, doing)
        return self._judge(self._exchange(request, deadline, doing), doing)

    def _request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | IO[bytes] | None = None
    ) -> Request:
        target = self._login.origin + self._login.prefix + target
        return Request(method, target, {**self._login.headers, **headers}, body)

    def _exchange(
        self,
        request: Request,
        deadline: Deadline,
        doing: str,
        *,
        cap: int = ANSWER_CAP,
        sink: IO[bytes] | None = None,
    ) -> Answer:
        try:
            return self._wire.exchange(request, deadline, cap=cap, sink=sink)
        except TooLargeError as error:
            raise IntegrityError(
                f"Could not {doing}: the server sends more than {cap:,} bytes, which no registry does."
            ) from error
        except TimeoutError as error:
            lost = unavailable(f"no answer within {self._timeout:g} s", self._shown, doing)
            raise LostError(lost.message, hint=lost.hint) from error
        except ssl.SSLCertVerificationError as error:
            raise UnavailableError(
                f"Could not {doing} at {self._shown}: its certificate is not trusted "
                f"({printable(error.verify_message, 100)}).",
                hint="MLFLOW_TRACKING_SERVER_CERT_PATH names the certificates to trust.",
            ) from error
        except ConnectionRefusedError as error:
            raise unavailable(_broken(error), self._shown, doing) from error
        except (ConnectionError, http.client.HTTPException) as error:
            lost = unavailable(_broken(error), self._shown, doing)
            raise LostError(lost.message, hint=lost.hint) from error
        except OSError as error:
            raise unavailable(_broken(error), self._shown, doing) from error

    def _judge(self, answer: Answer, doing: str) -> Answer:
        """Return an answer of status 200.

        Raises:
            MlxError: the error that another status stands for.
        """
        if answer.status == 200:
            return answer
        code, message = _refusal(answer)
        if answer.status in {401, 403}:
            raise self._unwelcome(answer.status, message, doing)
        if 300 <= answer.status < 400:
            place = printable(answer.headers.get("location", "nowhere"), 200)
            raise UnavailableError(
                f"Could not {doing} at {self._shown}: the server redirects to {place}.",
                hint="Give the address that it redirects to as the registry, if it is one.",
            )
        if code in _UNKNOWN_ENDPOINT or (not code and answer.status in {404, 405, 501}):
            raise NoEndpointError(
                f"Could not {doing} at {self._shown}: the server does not know what it is asked for "
                f"(status {answer.status}).",
                hint="Is it an MLflow server of version 2.9 or later? A path may have to follow its name.",
            )
        if not code:
            raise unavailable(message or f"status {answer.status}", self._shown, doing)
        raise translate(ValueError(message), code, answered=True, doing=doing, shown=self._shown)

    def _unwelcome(self, status: int, message: str, doing: str) -> MlxError:
        why = f": {message}" if message else ""
        if status == 401:
            return UnavailableError(
                f"Could not {doing} at {self._shown}: the server wants to know who you are{why}.",
                hint="Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN.",
            )
        return UnavailableError(
            f"Could not {doing} at {self._shown}: the server does not allow it{why}.",
            hint="Ask whoever runs the server; MLFLOW_TRACKING_USERNAME or _TOKEN say who you are.",
        )

    def _document(self, answer: Answer, doing: str) -> dict[str, Any]:
        try:
            found = json.loads(answer.body, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise self._no_registry(doing) from error
        if not isinstance(found, dict):
            raise self._no_registry(doing)
        return found

    def _no_registry(self, doing: str) -> UnavailableError:
        return unavailable("what answers there is no MLflow server", self._shown, doing)


def _refusal(answer: Answer) -> tuple[str, str]:
    """MLflow's error code and message; without a code what a plain text says, in one line."""
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        plain = answer.kind == "text/plain" and answer.body
        text = first_line(ValueError(answer.body[:2000].decode("utf-8", "replace"))) if plain else ""
        return "", text
    if not isinstance(found, dict) or not isinstance(found.get("error_code"), str):
        return "", ""
    return found["error_code"], first_line(ValueError(str(found.get("message", "")) or found["error_code"]))


def _wait(pause: float, deadline: Deadline) -> bool:
    try:
        if deadline.left() <= pause:
            return False
    except TimeoutError:
        return False
    time.sleep(pause)
    return True


def _broken(error: Exception) -> str:
    if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
        return "what comes back is no whole HTTP answer"
    text = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
    return printable(text, 200)


def _no_number(_: str) -> float:
    raise ValueError

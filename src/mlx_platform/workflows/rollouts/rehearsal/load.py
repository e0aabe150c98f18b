"""Test load on a server: callers that ask without a break, and an account of every answer."""

import http.client
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import orjson

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array, datatype_of
from mlx_platform.inference.model import Model
from mlx_platform.serving.binary_tensors import write_binary
from mlx_platform.workflows.watching.connection import connection_to

TIMEOUT = 10.0
_VERSION = "X-Mlx-Version"


@dataclass(frozen=True, slots=True)
class Question:
    """A request that a version of the model answers with 200: path, headers and body."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """When a request was sent and answered, on the monotonic clock; status 0 is a connection that failed."""

    sent: float
    received: float
    status: int
    version: str

    @property
    def failed(self) -> bool:
        return self.status != http.client.OK


@dataclass(slots=True)
class Load:
    """Callers on threads. `url` may change while they run; each goes there with its next request.

    Attributes:
        url: of the server that is asked.
        answers: everything that was answered, or failed, in the order of its end.
    """

    url: str
    questions: Sequence[Question]
    callers: int
    answers: list[Answer] = field(default_factory=list)
    _last: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        for place in range(self.callers):
            thread = threading.Thread(target=self._call, args=(place,), daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * TIMEOUT)

    def since(self, moment: float) -> list[Answer]:
        """The answers to requests that were sent at a moment or later."""
        with self._lock:
            return [answer for answer in self.answers if answer.sent >= moment]

    def last_sent(self, version: str, *, other: bool = False) -> float:
        """When the last request was sent that a version answered, or that another one did; 0 for never."""
        with self._lock:
            return max(
                (sent for name, sent in self._last.items() if name and (name == version) is not other),
                default=0.0,
            )

    def _note(self, answer: Answer) -> None:
        with self._lock:
            self.answers.append(answer)
            self._last[answer.version] = max(answer.sent, self._last.get(answer.version, 0.0))

    def _call(self, place: int) -> None:
        where, connection = self.url, connection_to(self.url, TIMEOUT)
        try:
            while not self._stop.is_set():
                if where != self.url:
                    connection.close()
                    where, connection = self.url, connection_to(self.url, TIMEOUT)
                answer = _asked(connection, self.questions[place % len(self.questions)])
                place += self.callers
                self._note(answer)
                if answer.failed:
                    self._stop.wait(0.05)  # a server that refuses is not helped by being asked at once again
        finally:
            connection.close()


def _asked(connection: http.client.HTTPConnection, question: Question) -> Answer:
    """Ask once; a connection that failed is opened anew by the next one."""
    sent = time.monotonic()
    try:
        connection.request("POST", question.path, question.body, question.headers)
        response = connection.getresponse()
        response.read()
    except (OSError, http.client.HTTPException):
        connection.close()
        return Answer(sent, time.monotonic(), 0, "")
    return Answer(sent, time.monotonic(), response.status, response.getheader(_VERSION, ""))


def questions_of(model: Model) -> tuple[Question, ...]:
    """The golden cases of a model as requests of the protocol, with tensors in binary.

    Raises:
        UsageError: the package has none that can be asked.
    """
    found = tuple(_question(model.name, model.encode(case.rows())) for case in model.package.golden())
    if not found:
        raise UsageError(
            f"The package of {model.name}/{model.version} has no golden cases to ask a server with.",
            hint="Register it with --golden FILE.",
        )
    return found


def _question(name: str, feeds: dict[str, Array]) -> Question:
    inputs, chunks = [], []
    for tensor, array in feeds.items():
        chunk = write_binary(array)
        chunks.append(chunk)
        inputs.append(
            {
                "name": tensor,
                "datatype": datatype_of(array),
                "shape": list(array.shape),
                "parameters": {"binary_data_size": len(chunk)},
            }
        )
    head = orjson.dumps({"inputs": inputs})
    headers = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(head)),
        "Cache-Control": "no-store",
    }
    return Question(f"/v2/models/{name}/infer", headers, head + b"".join(chunks))

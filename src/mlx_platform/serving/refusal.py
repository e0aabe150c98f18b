"""Why a request gets no answer: one exception that carries the HTTP status and a sentence.

400 malformed or not what the model takes; 404 and 405 unknown; 408 and 504 too late; 413 and 415 a body that
cannot be taken, 413 also inputs that do not fit into memory; 422 an answer that JSON cannot carry; 429 a full
queue; 431 too many headers; 503 not ready.
"""

from typing import ClassVar

from mlx_platform.core.errors import DeadlineError, MlxError, UnavailableError
from mlx_platform.inference.session import OverLimitError
from mlx_platform.serving.job import QueueFullError


class Refusal(MlxError):  # noqa: N818 - a refusal is an answer, not a failure
    """A request that is refused. The sentence never repeats what the client sent.

    Args:
        status: the HTTP status.
        message: one sentence for the client.
        retry_after: seconds after which asking again makes sense (429 and 503).
    """

    code: ClassVar[str] = "refused"

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class FailedRefusal(Refusal):
    """The model failed on every device: somebody else may have the answer."""


def failed() -> Refusal:
    return FailedRefusal(503, "The model failed on this server: ask again later.", retry_after=1)


def malformed(message: str) -> Refusal:
    return Refusal(400, message)


def queue_full(retry_after: int) -> Refusal:
    return Refusal(429, "The queue is full: ask again later.", retry_after=retry_after)


def not_ready() -> Refusal:
    return Refusal(503, "The model is not ready: ask again later.", retry_after=1)


def draining() -> Refusal:
    return Refusal(503, "The server is shutting down: ask another one.", retry_after=1)


def out_of_memory() -> Refusal:
    return Refusal(503, "There is not enough memory for this request now.", retry_after=1)


def too_large() -> Refusal:
    return Refusal(413, "This request needs more memory than the model may use here: send a smaller one.")


def too_late() -> Refusal:
    return Refusal(504, "The deadline passed before there was an answer.")


def refusal_of(error: MlxError, *, draining_now: bool) -> Refusal:
    """What a client is told of an error in a run, or on the way there."""
    if isinstance(error, QueueFullError):
        return queue_full(error.retry_after)
    if isinstance(error, DeadlineError):
        return too_late()
    if isinstance(error, OverLimitError):
        return too_large()  # it was tried with nothing beside it: asking again would change nothing
    if isinstance(error, MemoryError):
        return out_of_memory()
    if isinstance(error, UnavailableError):
        return draining() if draining_now else failed()
    # The runtime's own words name inner parts of the model, which are nobody's business.
    return malformed("The model cannot run these inputs.")

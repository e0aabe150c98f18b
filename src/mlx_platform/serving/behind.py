"""How the second listener answers, whoever stands behind it: nothing is kept, and nothing goes unanswered."""

import logging
from collections.abc import Awaitable, Callable

from mlx_platform.serving.http_exchange import (
    ClientGoneError,
    Receive,
    Response,
    Scope,
    error_response,
    header_lines,
    read_body,
)
from mlx_platform.serving.http_protocol import RESPOND
from mlx_platform.serving.refusal import Refusal

_logger = logging.getLogger(__name__)


async def answer_behind(
    scope: Scope, receive: Receive, answer: Callable[[Scope, bytes], Awaitable[Response]]
) -> None:
    """Read a request, and send what `answer` makes of it and its body."""
    try:
        body = await read_body(receive)
        response = await answer(scope, body)
    except ClientGoneError:
        return
    except Refusal as refusal:
        response = error_response(refusal)
        if refusal.status == 401:
            response.headers.append((b"www-authenticate", b"Bearer"))
    except Exception:  # the rim: who watches the server is told, and its log has the traceback
        _logger.exception("The admin listener could not answer.")
        response = error_response(Refusal(500, "The server failed to answer: this is a fault of its own."))
    head = b"content-type: %b\r\ncontent-length: %d\r\ncache-control: no-store\r\n%b" % (
        response.content_type,
        len(response.body),
        header_lines(response.headers),
    )
    scope[RESPOND](response.status, head, response.body)

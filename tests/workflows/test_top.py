"""`mlx top` beside a server of its own, as a user would watch it."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

PAGE = b"""# TYPE mlx_model info
mlx_model_info{model="digits",version="3",route="stable",digest="d",device="cpu",provider="CPU"} 1
mlx_ready 1
mlx_predictions_total{model="digits"} %(count)d
mlx_batch_rows_count{model="digits"} %(count)d
mlx_batch_rows_sum{model="digits"} %(count)d
mlx_batching_fault{model="digits"} 1
mlx_failures_total{reason="queue_full"} %(count)d
mlx_request_duration_seconds_count{endpoint="/predict",status="2xx"} %(count)d
mlx_request_duration_seconds_bucket{endpoint="/predict",status="2xx",le="0.5"} %(count)d
mlx_request_duration_seconds_bucket{endpoint="/predict",status="2xx",le="+Inf"} %(count)d
"""

# Whoever runs the tests in the background has Ctrl-C ignored in all that they start.
_INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from mlx_platform.cli.entry import run
run()
"""


@contextmanager
def admin_listener(answer):
    """Somebody who answers scrapes; `answer` makes status and body of the headers and the scrape's number."""
    scrapes = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            scrapes.append(self.path)
            status, body = answer(self.headers, len(scrapes))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", scrapes
    finally:
        server.shutdown()
        server.server_close()


def growing(_headers, number):
    return 200, PAGE % {b"count": 100 * number}


def test_a_look_says_what_happened_since_the_one_before(mlx):
    with admin_listener(growing) as (url, scrapes):
        data = json.loads(mlx("top", url, "--every", "0.1", "--json").out)["data"]
    assert scrapes == ["/metrics", "/metrics"]
    assert (data["model"], data["version"], data["ready"]) == ("digits", "3", True)
    assert data["predictions_per_second"] == pytest.approx(100 / data["seconds"])
    assert data["failures"] == {"queue_full": 100}
    assert data["batches"]["mean_rows"] == 1.0
    (request,) = data["requests"]
    assert (request["endpoint"], request["p50_seconds"], request["share_5xx"]) == ("/predict", 0.25, 0.0)


def test_the_page_is_for_people_and_warns(mlx):
    with admin_listener(growing) as (url, _):
        outcome = mlx("top", f"{url}/metrics", "--every", "0.1")
    assert outcome.code == 0
    assert "digits/3" in outcome.out
    assert re.search(r"/predict +[\d.,]+ +250\.00", outcome.out)
    assert "warning: Every run has one row although requests wait" in outcome.err


def test_the_token_comes_from_the_environment(mlx, monkeypatch):
    def guarded(headers, number):
        right = headers["Authorization"] == "Bearer a-token-of-a-test"
        return growing(headers, number) if right else (401, b"{}")

    with admin_listener(guarded) as (url, _):
        outcome = mlx("top", url, "--once", "--every", "0.1")
        assert outcome.code == 2
        assert "MLX_ADMIN_TOKEN" in outcome.err
        monkeypatch.setenv("MLX_ADMIN_TOKEN", "a-token-of-a-test")
        assert mlx("top", url, "--once", "--every", "0.1").code == 0


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [(404, b"", 3), (200, b"node_cpu 1\n", 3), (500, b"", 3), (200, b'mlx_ready{"\n', 9), (200, b"\xff", 3)],
)
def test_whoever_is_no_server_of_ours_is_told_apart(mlx, status, body, code):
    with admin_listener(lambda *_: (status, body)) as (url, _):
        assert mlx("top", url, "--every", "0.1").code == code


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:1"])
def test_a_server_that_does_not_answer_is_unavailable(mlx, url):
    outcome = mlx("top", url)
    assert outcome.code == 9
    assert "does not answer" in outcome.err


@pytest.mark.parametrize("url", ["ftp://host/", "http://", "http://host:port", "http://[x"])
def test_what_is_no_url_is_a_usage_error(mlx, url):
    assert mlx("top", url).code == 2


def test_on_a_terminal_it_goes_on_until_ctrl_c():
    with admin_listener(growing) as (url, scrapes):
        main, terminal = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-c", _INTERRUPTIBLE, "top", url, "--every", "0.1"],
            stdin=terminal,
            stdout=terminal,
            stderr=subprocess.PIPE,
            env=dict(os.environ, TERM="xterm", COLUMNS="120", LINES="50"),
        )
        os.close(terminal)
        shown = b""
        while len(scrapes) < 5 or b"predictions/s" not in shown:
            shown += os.read(main, 65536)
        process.send_signal(signal.SIGINT)
        try:
            while chunk := os.read(main, 65536):
                shown += chunk
        except OSError:
            pass  # the other end is closed
        assert process.wait(20) == 0, process.stderr.read()
        process.stderr.close()
        os.close(main)
    assert b"\x1b[?1049h" in shown  # a screen of its own ...
    assert b"digits/3" in shown.rpartition(b"\x1b[?1049l")[2]  # ... and the last page after it

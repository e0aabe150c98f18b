"""A receiver of events that checks each signature, and does its work once, however often it is told.

    export MLX_WEBHOOK_SECRET=whsec_$(head -c 32 /dev/urandom | base64)
    python examples/webhook_receiver.py --port 8765

with this in mlx.toml:

    [[events.sinks]]
    name = "ops"
    url = "http://127.0.0.1:8765/mlx"
    secret_env = "MLX_WEBHOOK_SECRET"

Then `mlx events test ops`, or promote something. It needs the standard library only.
"""

import argparse
import base64
import hashlib
import hmac
import json
import os
import sqlite3
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

BODY_CAP = 1 << 20  # bytes
TOLERANCE = 300  # seconds that a signature may be old, so that nobody can replay it later


def main() -> int:
    parser = argparse.ArgumentParser(description="Receive events of mlx.")
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--database", default="events.db", help="remembers which events were handled")
    arguments = parser.parse_args()
    secret = os.environ.get("MLX_WEBHOOK_SECRET", "")
    if not secret:
        print("Set MLX_WEBHOOK_SECRET to the secret that mlx signs with.", file=sys.stderr)
        return 2
    Receiver.key = key_of(secret)
    Receiver.seen = sqlite3.connect(arguments.database)
    Receiver.seen.execute("CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY)")
    with HTTPServer(("127.0.0.1", arguments.port), Receiver) as server:
        print(f"Listening on http://127.0.0.1:{server.server_port}/", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


def key_of(secret: str) -> bytes:
    """A secret is text, or base64 behind `whsec_`."""
    if secret.startswith("whsec_"):
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    return secret.encode()


def verified(key: bytes, identifier: str, stamp: str, signatures: str, body: bytes) -> bool:
    """Whether somebody who knows the key signed this very body not long ago."""
    if not stamp.isdigit() or abs(time.time() - int(stamp)) > TOLERANCE:
        return False
    digest = hmac.new(key, f"{identifier}.{stamp}.".encode() + body, hashlib.sha256).digest()
    wanted = f"v1,{base64.b64encode(digest).decode()}".encode()
    # Several signatures are allowed, for the time in which a secret is changed.
    return any(hmac.compare_digest(wanted, one.encode()) for one in signatures.split())


class Receiver(BaseHTTPRequestHandler):
    """Answers 204 for an event that is done, 4xx for what is none; anything else is told again."""

    key: bytes
    seen: sqlite3.Connection
    timeout = 10  # seconds without a byte

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > BODY_CAP:
            self.answer(413)
            return
        body = self.rfile.read(int(length))
        identifier = self.headers.get("webhook-id", "")
        stamp, signatures = (self.headers.get(f"webhook-{name}", "") for name in ("timestamp", "signature"))
        if not verified(self.key, identifier, stamp, signatures, body):
            self.answer(401)
            return
        # The work and the mark that it is done are one transaction: after a crash both are done, or neither.
        with self.seen:
            new = self.seen.execute("INSERT OR IGNORE INTO seen VALUES (?)", (identifier,)).rowcount
            if new:
                handle(json.loads(body)["data"])
        self.answer(204)

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep requests, which anybody can send, out of the log."""


def handle(event: dict[str, object]) -> None:
    """Your work: here a line of text. Text in an event is what people wrote: escape it where you show it."""
    line = {name: event[name] for name in ("kind", "model", "alias", "from_version", "to_version", "actor")}
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())

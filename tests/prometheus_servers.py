"""What answers like Prometheus."""

import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def prometheus(status, body, delay=0.0):
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            time.sleep(delay)
            self.send_response(status)
            self.end_headers()
            with suppress(BrokenPipeError):
                self.wfile.write(body)

        def log_message(self, *_arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def vector(*values):
    samples = ",".join(f'{{"metric":{{}},"value":[1700000000.1,"{value}"]}}' for value in values)
    return f'{{"status":"success","data":{{"resultType":"vector","result":[{samples}]}}}}'.encode()

"""A webhook endpoint: a real HTTP server in threads, which answers as the test sets and keeps what it received."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from support.eventually import patience


class Received(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """``answers`` are the statuses of the next responses, then 200. Between ``hold`` and ``release``, none is sent.

    ``acknowledged`` are the requests in ``received`` that were answered with 200.
    """

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.acknowledged: list[Received] = []
        self.answers: list[int] = []
        self.headers: dict[str, str] = {}
        self._free = threading.Event()
        self._free.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.received.append(found := Received(self.path, headers, body))
                outer._free.wait(patience(60))
                status = outer.answers.pop(0) if outer.answers else 200
                outer.acknowledged += [found] if status == 200 else []
                self.send_response(status)
                for name, value in {**outer.headers, "content-length": "2"}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                pass  # the sender has hung up

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hooks"

    @property
    def ids(self) -> list[str]:
        return [one.headers["webhook-id"] for one in self.received]

    def hold(self) -> None:
        """Hold back all responses."""
        self._free.clear()

    def release(self) -> None:
        """Answer all waiting requests."""
        self._free.set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()

"""An S3-compatible server on loopback, and before it a proxy that misbehaves as it is told."""

from __future__ import annotations

import http.client
import random
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Proxy(ThreadingHTTPServer):
    """Passes requests on, some of them not.

    Attributes:
        share: the part of the GET requests for data that goes wrong.
        kinds: how: "drop" closes in the middle, "throttle" answers 503, "truncate" sends less and
            says that it is all.
        share_written: the part of the requests that write which are dropped or throttled.
        sent: bytes of data that were sent whole, by path.
        faults: what went wrong, by kind.
        before: called with the path before each GET for data.
    """

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = port
        self.kinds = ("drop", "throttle", "truncate")
        self.calm()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def calm(self) -> None:
        """Behaves, and forgets what was."""
        self.share = self.share_written = 0.0
        self.random = random.Random(16)
        self.sent: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.before = lambda path: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address) -> None:
        """A client that is gone is nothing to tell."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments) -> None:
        pass

    def _pass_on(self) -> None:
        server = self.server
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        of_data = self.command == "GET" and "?" not in self.path and self.path.count("/") > 1
        if of_data:
            server.before(self.path)
        writes = self.command in ("PUT", "POST") and self.path.count("/") > 1
        share = server.share_written if writes else server.share if of_data else 0.0
        wrong = (writes or of_data) and server.random.random() < share
        kind = server.random.choice(server.kinds[: 2 if writes else 3]) if wrong else ""
        server.faults[f"{kind} {self.command}" if writes else kind] += 1
        if writes and kind == "drop":
            self.close_connection = True
            self.connection.close()
            return
        if kind == "throttle":
            text = b"<Error><Code>SlowDown</Code><Message>Please reduce your rate</Message></Error>"
            self._answer(503, [("Content-Type", "application/xml")], text, text)
            return
        behind = http.client.HTTPConnection("127.0.0.1", server.behind)
        behind.request(self.command, self.path, body, dict(self.headers))
        answer = behind.getresponse()
        data = answer.read()
        headers = [
            (name, value)
            for name, value in answer.getheaders()
            if name.lower() not in ("content-length", "transfer-encoding", "connection")
        ]
        if kind == "truncate":
            data = data[: len(data) // 2]
        sent = data[: len(data) // 2] if kind == "drop" else data
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self._answer(answer.status, headers, data, sent, length)
        if of_data and not kind:
            server.sent[self.path] += len(data)

    def _answer(self, status, headers, data, sent, length=None) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(sent)
        if sent is not data and len(sent) < len(data):
            self.close_connection = True
            self.connection.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on  # noqa: N815

"""A server on the loopback device that has one file, and misbehaves as it is told."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest.mock import patch
from urllib import request

from ien.data import download
from ien.data.download import RemoteFile


class Handler(BaseHTTPRequestHandler):
    """The first folder of the address says how the mirror behaves."""

    server: Mirror

    def do_GET(self) -> None:
        body = self.server.body
        behaviour, wanted = self.path.split("/")[1], self.headers.get("Range")
        self.server.asked.append((behaviour, wanted))
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        if behaviour == "missing":
            return self.send_error(404)
        if behaviour == "redirect":
            return self.answer(302, b"", Location="ftp://127.0.0.1/file")
        if behaviour == "norange":
            return self.answer(200, body)
        if behaviour == "refuses" and start:
            return self.send_error(416)
        if behaviour == "shifted" and start:
            return self.answer(206, body[start + 1 :], **{"Content-Range": f"bytes {start + 1}-"})
        if behaviour == "short":
            return self.answer(200, b"please log in")
        if behaviour == "chatty":  # says nothing of the length, and sends too much
            self.send_response(200)
            self.end_headers()
            return self.send(body + b"and more")
        if behaviour == "wrong":
            body = bytes(len(body))
        ranged = {"Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"} if start else {}
        sent = len(body) // 2 if behaviour in ("truncated", "stalls") else len(body)
        self.answer(206 if start else 200, body[start:], sent - start, **ranged)
        if behaviour == "stalls":
            self.server.released.wait(30)

    def answer(self, status: int, body: bytes, sent: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.send(body[:sent])

    def send(self, body: bytes) -> None:
        try:
            self.wfile.write(body)
            self.wfile.flush()
        except ConnectionError:
            pass  # the other side has seen enough

    def log_message(self, format: str, *args: object) -> None:
        pass


class Mirror(ThreadingHTTPServer):
    def __init__(self, body: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.body = body
        self.asked: list[tuple[str, str | None]] = []
        """How each request was answered, and for which bytes it asked."""
        self.released = threading.Event()

    def file(self, *behaviours: str, name: str = "file.gz") -> RemoteFile:
        """The file, with one mirror for each behaviour; any other word is a good one."""
        address = f"http://127.0.0.1:{self.server_port}"
        urls = tuple(f"{address}/{behaviour}/{name}" for behaviour in behaviours)
        return RemoteFile(name, len(self.body), hashlib.sha256(self.body).hexdigest(), urls)


def allowing_http() -> Any:
    """Follow http: addresses while a block runs."""
    return patch.object(download, "HANDLERS", (request.HTTPHandler, *download.HANDLERS))


@contextmanager
def serving(body: bytes) -> Iterator[Mirror]:
    """A mirror that runs while the block does, and that may be asked without encryption."""
    with Mirror(body) as server, allowing_http():
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join()

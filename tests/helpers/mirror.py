"""A server on the loopback device that has one archive."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ien.data.download import RemoteFile, md5


@contextmanager
def mirror(archive: Path) -> Iterator[tuple[RemoteFile, list[str]]]:
    """The archive as a file to download, and a list of what has been asked of the server."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:
            asked.append(self.path)

    handler = functools.partial(Handler, directory=str(archive.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        url = f"http://127.0.0.1:{server.server_port}/{archive.name}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield RemoteFile(archive.name, archive.stat().st_size, md5(archive), (url,)), asked
        server.shutdown()
        thread.join()

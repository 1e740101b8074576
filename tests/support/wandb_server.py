"""As much of W&B's server as the project uses, on this machine: it keeps what it is sent and gives it back.

Runs with their config, history, summary and files; artifacts; views (workspaces and reports). It can be told to misbehave, see
`Server.trouble`. Knows the wire, as seen of client 0.31, and nothing of the project. The real server was not looked at.
"""

import base64
import contextlib
import http.server
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.wandb_operations import ENTITY, Operations, Stored
from tests.support.wandb_study import clear_environment

__all__ = ["ENTITY", "KEY", "Server", "Stored", "serving"]

KEY = "planted0secret0" * 3  # wandb wants at least 40 characters


class Server(Operations, http.server.ThreadingHTTPServer):
    """The server and all that it keeps. `trouble`: from a path to None, a status, "close" or seconds to dawdle."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        http.server.ThreadingHTTPServer.__init__(self, ("127.0.0.1", 0), Handler)
        Operations.__init__(self)
        self.uploads: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.bodies: list[bytes] = []  # of every request that had one
        self.unknown: list[str] = []
        self.trouble: Callable[[str], Any] = lambda _path: None
        self.key = KEY
        self.lock = threading.RLock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: Any) -> None:
        """A client that went away is no news."""

    def of(self, job_type: str, current: bool = True) -> list[Stored]:
        """The runs of a kind; current: without those that were superseded."""
        return [
            run
            for run in self.runs.values()
            if run.told.get("jobType") == job_type and not (current and "superseded" in run.tags)
        ]

    # What is sent beside GraphQL.

    def stream(self, name: str, body: dict[str, Any]) -> None:
        """A part of a run's history and summary; what comes again at the same offset is not doubled."""
        run = self.runs[name]
        for file, part in (body.get("files") or {}).items():
            if file == "wandb-history.jsonl":
                run.lines |= dict(enumerate(part["content"], part["offset"]))
            elif file == "wandb-summary.json":
                run.summary = json.loads(part["content"][-1])
        if body.get("complete"):
            run.state = "finished" if not body.get("exitcode") else "failed"

    def keep(self, path: str, content: bytes) -> None:
        """An uploaded file, of a run or of an artifact."""
        _, kind, owner, name = path.split("/", 3)
        if kind == "kept":
            self.runs[owner].files[name] = content
        elif kind == "artifacts" and owner != "manifest":
            self.artifacts[owner]["files"][name] = content
        else:
            self.uploads[path] = content


@contextlib.contextmanager
def serving(patch, folder: Path) -> Iterator[Server]:
    """A server that the environment names and whose key it holds; it was asked nothing that it does not know."""
    clear_environment(patch, folder)
    server = Server()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    patch.setenv("WANDB_BASE_URL", server.url)
    patch.setenv("WANDB_API_KEY", KEY)
    yield server
    server.shutdown()
    server.server_close()
    assert server.unknown == []


class Handler(http.server.BaseHTTPRequestHandler):
    """One request."""

    server: Server
    protocol_version = "HTTP/1.0"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        owner, name = self.path.removeprefix("/kept/").split("/", 1)
        found = self.server.runs.get(owner)
        if found is None or name not in found.files:
            return self._answer(404, b"{}")
        return self._answer(200, found.files[name])

    def do_PUT(self) -> None:
        content = self._body()
        if self._misbehaves():
            return
        with self.server.lock:
            self.server.keep(self.path, content)
        self._answer(200, b"{}")

    def do_POST(self) -> None:
        body = json.loads(self._body())
        if self._misbehaves(_operation(body) if self.path.endswith("/graphql") else self.path):
            return
        with self.server.lock:
            if self.path.endswith("/graphql"):
                value = self._data(_operation(body), body.get("variables") or {})
            else:
                self.server.stream(self.path.split("/")[-2], body)
                value = {}
        self._answer(200, json.dumps(value).encode())

    def _body(self) -> bytes:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(content)
        return content

    def _data(self, operation: str, told: dict[str, Any]) -> dict[str, Any]:
        self.server.asked.append(operation)
        method = getattr(self.server, f"do_{operation}", None)
        if method is None:
            self.server.unknown.append(operation)
            return {"data": {}}
        try:
            return {"data": method(told)}
        except ValueError as error:
            return {"data": None, "errors": [{"message": str(error)}]}

    def _misbehaves(self, what: str | None = None) -> bool:
        """Do what the server was told to do wrong; whether that was the answer."""
        key = self.headers.get("Authorization", "")
        if self.path.endswith("/graphql") and self.server.key and not _holds(key, self.server.key):
            self._answer(401, b'{"errors": [{"message": "user is not logged in"}]}')
            return True
        trouble = self.server.trouble(what or self.path)
        if isinstance(trouble, float):
            time.sleep(trouble)
            return False
        if trouble == "close":
            self.close_connection = True
            self.connection.close()
            return True
        if trouble is not None:
            self._answer(trouble, b'{"errors": [{"message": "internal error"}]}')
        return trouble is not None

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _operation(body: dict[str, Any]) -> str:
    return (re.search(r"(?:query|mutation)\s+(\w+)", body["query"]) or ["", "?"])[1]


def _holds(authorization: str, key: str) -> bool:

    kind, _, value = authorization.partition(" ")
    return kind == "Basic" and base64.b64decode(value).decode().partition(":")[2] == key

"""A local stand-in for the W&B server, as far as the project uses it: it stores what it receives and returns it.

It stores runs with their config, history and summary, and views (workspaces and reports). `Server.fault` makes it misbehave. It
implements the protocol as seen from client 0.31 and knows nothing of the project; the real server was not examined.
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

from tests.support.wandb_operations import ENTITY, Operations, StoredRun
from tests.support.wandb_study import clear_environment

__all__ = ["ENTITY", "KEY", "Server", "StoredRun", "run_server"]

KEY = "planted0secret0" * 3  # wandb wants at least 40 characters


class Server(Operations, http.server.ThreadingHTTPServer):
    """The server and its data. `fault` maps an operation or path to None, an HTTP status, "close", or a delay in seconds."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        http.server.ThreadingHTTPServer.__init__(self, ("127.0.0.1", 0), Handler)
        Operations.__init__(self)
        self.operations: list[str] = []
        self.bodies: list[bytes] = []  # of all requests with a body
        self.unknown: list[str] = []
        self.fault: Callable[[str], Any] = lambda _path: None
        self.key = KEY
        self.lock = threading.RLock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: Any) -> None:
        """Ignore clients that closed the connection."""

    def runs_of_type(self, job_type: str, current: bool = True) -> list[StoredRun]:
        """Return the runs of a job type; if `current`, without superseded runs."""
        return [
            run
            for run in self.runs.values()
            if run.metadata.get("jobType") == job_type and not (current and "superseded" in run.tags)
        ]

    # Requests other than GraphQL.

    def append_history(self, name: str, body: dict[str, Any]) -> None:
        """Store a part of the history and summary of a run; lines that arrive again at the same offset replace the earlier."""
        run = self.runs[name]
        for file, part in (body.get("files") or {}).items():
            if file == "wandb-history.jsonl":
                run.lines |= dict(enumerate(part["content"], part["offset"]))
            elif file == "wandb-summary.json":
                run.summary = json.loads(part["content"][-1])
        if body.get("complete"):
            run.state = "finished" if not body.get("exitcode") else "failed"


@contextlib.contextmanager
def run_server(patch, folder: Path) -> Iterator[Server]:
    """Run a server that the environment points to, with its key; at the end, fail if there was an unknown operation."""
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
    """The handler of one request."""

    server: Server
    protocol_version = "HTTP/1.0"

    def log_message(self, *_: Any) -> None:
        pass

    def do_PUT(self) -> None:
        self._body()  # of a file, which is not kept
        if not self._apply_fault():
            self._respond(200, b"{}")

    def do_POST(self) -> None:
        body = json.loads(self._body())
        if self._apply_fault(_operation(body) if self.path.endswith("/graphql") else self.path):
            return
        with self.server.lock:
            if self.path.endswith("/graphql"):
                value = self._data(_operation(body), body.get("variables") or {})
            else:
                self.server.append_history(self.path.split("/")[-2], body)
                value = {}
        self._respond(200, json.dumps(value).encode())

    def _body(self) -> bytes:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(content)
        return content

    def _data(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        self.server.operations.append(operation)
        method = getattr(self.server, f"do_{operation}", None)
        if method is None:
            self.server.unknown.append(operation)
            return {"data": {}}
        try:
            return {"data": method(variables)}
        except ValueError as error:
            return {"data": None, "errors": [{"message": str(error)}]}

    def _apply_fault(self, operation: str | None = None) -> bool:
        """Apply the fault of the server, if any, to this request and return whether that ended the request."""
        key = self.headers.get("Authorization", "")
        if self.path.endswith("/graphql") and self.server.key and not _has_key(key, self.server.key):
            self._respond(401, b'{"errors": [{"message": "user is not logged in"}]}')
            return True
        fault = self.server.fault(operation or self.path)
        if isinstance(fault, float):
            time.sleep(fault)
            return False
        if fault == "close":
            self.close_connection = True
            self.connection.close()
            return True
        if fault is not None:
            self._respond(fault, b'{"errors": [{"message": "internal error"}]}')
        return fault is not None

    def _respond(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _operation(body: dict[str, Any]) -> str:
    return (re.search(r"(?:query|mutation)\s+(\w+)", body["query"]) or ["", "?"])[1]


def _has_key(authorization: str, key: str) -> bool:
    kind, _, value = authorization.partition(" ")
    return kind == "Basic" and base64.b64decode(value).decode().partition(":")[2] == key

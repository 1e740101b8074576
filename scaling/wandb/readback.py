"""Reading back: what the server has of a study, through W&B's public API, and whether it is what was sent.

The client is silent where it matters: only what was read back and compared may be called published.
"""

import contextlib
import math
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.wandb import sending
from scaling.wandb.client_process import reason_of
from scaling.wandb.sending import Sent
from scaling.wandb.values import storable_config, storable_row

SUPERSEDED = "superseded"
_AT_A_TIME = 8
_PAGE = 500
_MOST_ROWS = 10_000  # a history of so many is given whole
_POLL_SECONDS = 0.5  # a server takes some time to have what it was sent
_SINCE = 2e-6  # how much what another machine worked out from the same records may differ
Fields = Mapping[str, Any]


@dataclass(frozen=True)
class TrackingServer:
    """W&B's public API, and the study in it."""

    wandb: Any
    api: Any
    entity: str
    project: str
    group: str
    patience: float  # seconds

    def listing(self) -> list[Any]:
        """Every run of the study that the server has; none where there is no such project yet."""
        self.api.flush()  # it keeps what it was told before
        found = self.api.runs(
            f"{self.entity}/{self.project}", filters={"group": self.group}, per_page=_PAGE, lazy=False
        )
        try:
            return [run for run in found]  # noqa: C416 - list() would ask for the length, and swallow what that raises
        except ValueError as error:
            if "Could not find project" in str(error):
                return []
            raise


def connect(wandb: Any, job: Fields) -> TrackingServer:
    """The server of a job. Raises what wandb raises when it is out of reach or does not accept the key."""
    api = wandb.Api(timeout=max(1, math.ceil(job["timeout"])))
    return TrackingServer(
        wandb, api, job["entity"] or api.default_entity, job["project"], job["group"], job["timeout"]
    )


def settle(server: TrackingServer, wanted: Sequence[tuple[Fields, Sent]]) -> dict[str, str]:
    """Read back what was sent, until all of it is there or patience ends: id in the plan -> what differs."""
    wrong = {run["id"]: "not there" for run, _ in wanted}
    deadline = time.monotonic() + server.patience
    while wrong:
        there = {run.id: run for run in server.listing()}

        def look(one: tuple[Fields, Sent], there: Mapping[str, Any] = there) -> tuple[str, str | None]:
            run, sent = one
            found = there.get(sent.id)
            return run["id"], "not there" if found is None else difference(server, found, run, sent)

        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            looked = dict(pool.map(look, [one for one in wanted if one[0]["id"] in wrong]))
        wrong = {name: why for name, why in looked.items() if why is not None}
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_SECONDS if wrong else 0)
    return wrong


def difference(server: TrackingServer, there: Any, run: Fields, sent: Sent | None = None) -> str | None:
    """How a run on the server differs from what it should be, in words; None if it does not.

    Exactly, down to the bytes of its files, when it was sent just now; otherwise its numbers to six digits.
    """
    try:
        return _difference(server, there, run, sent)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return f"it cannot be read: {reason_of(error)}"


def _difference(server: TrackingServer, there: Any, run: Fields, sent: Sent | None) -> str | None:
    within = 0.0 if sent else _SINCE
    if there.state != "finished":
        return f"its state is {there.state}"
    told = {"the name": (there.name, run["name"]), "the group": (there.group, run["group"])}
    for what, (one, other) in told.items():
        if one != other:
            return what
    for what, mine, theirs in (
        ("the config", storable_config(run["config"]), storable_config(there.config)),
        ("the summary", storable_row(run["summary"]), storable_row(there.summary_metrics)),
    ):
        for name, value in mine.items():
            if not alike(theirs.get(name), value, within):
                return f"{what}, at {name}"
    rows = sorted(there.history(samples=_MOST_ROWS, pandas=False), key=lambda row: row["_step"])
    rows = [
        {name: value for name, value in storable_row(row).items() if not name.startswith("_")} for row in rows
    ]
    if run["rows"]:
        return (
            None
            if alike(rows, run["rows"], within)
            else f"the rows: {len(rows)} there, {len(run['rows'])} sent"
        )
    return _shown(rows[0] if rows else {}, run) or _files(there, sent) or _artifact(server, there, run)


def alike(one: Any, other: Any, within: float) -> bool:
    """Whether two JSON values are equal, numbers within this share."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return set(one) == set(other) and all(
            alike(value, other[name], within) for name, value in one.items()
        )
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(alike(a, b, within) for a, b in zip(one, other, strict=True))
    if (
        isinstance(one, bool)
        or isinstance(other, bool)
        or not (isinstance(one, int | float) and isinstance(other, int | float))
    ):
        return type(one) is type(other) and one == other
    return one == other or math.isclose(one, other, rel_tol=within)


def _shown(row: Fields, run: Fields) -> str | None:
    """Whether the study's one row names each figure and each table as they are."""
    for path, digest in run["images"].items():
        if (row.get(sending.key_of(path)) or {}).get("sha256") != digest:
            return f"the figure {path}"
    for name, table in run["tables"].items():
        if (row.get(name) or {}).get("nrows") != len(table["data"]):
            return f"the table {name}"
    return None


def _files(there: Any, sent: Sent | None) -> str | None:
    """Whether every file that wandb had to upload came, byte by byte."""
    if sent is None:
        return None
    kept = {file.name: file for file in _all(there.files(per_page=_PAGE))}
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
        for path in sorted(sent.files.rglob("media/**/*")):
            name = path.relative_to(sent.files).as_posix()
            if not path.is_file():
                continue
            if name not in kept:
                return f"the file {name}"
            with contextlib.closing(kept[name].download(root=folder, replace=True)) as copy:
                if Path(copy.name).read_bytes() != path.read_bytes():
                    return f"the file {name}"
    return None


def _artifact(server: TrackingServer, there: Any, run: Fields) -> str | None:
    """Whether the records are there as an artifact, by the digest of their lines."""
    digest = sending.artifact(server.wandb, run).digest
    with contextlib.suppress(AssertionError):  # the client cannot list one whose upload came to no end (0.31)
        for each in _all(there.logged_artifacts(per_page=_PAGE)):
            if each.type == sending.ARTIFACT and each.digest == digest and each.state == "COMMITTED":
                return None
    return "the artifact of the records"


def _all(found: Iterable[Any]) -> list[Any]:
    """As a list, without asking for a length first."""
    return [each for each in found]  # noqa: C416


def tag(run: Any, old: bool) -> bool:
    """Tag a run as superseded, or take the tag away; whether anything was to be changed."""
    tags = [each for each in run.tags if each != SUPERSEDED] + ([SUPERSEDED] if old else [])
    if sorted(tags) == sorted(run.tags):
        return False
    run.load(
        force=True
    )  # once more: what was listed has lost the client's own part of the config, and an update would lose it
    run.tags = tags
    run.update()
    return True

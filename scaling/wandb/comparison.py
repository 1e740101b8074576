"""Compare a run on the server, read through W&B's public API, with the run that should be there.

The client is silent where it matters: only what was read back and compared may be called published.
"""

import contextlib
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scaling.wandb.client_process import reason_of
from scaling.wandb.sending import ARTIFACT, SentRun, figure_key, records_artifact
from scaling.wandb.tracked_run import TrackedRun, storable_config, storable_row

_MAX_ROWS = 10_000  # the server samples a longer history
_PAGE = 500
_ROUNDING = 2e-6  # by which numbers computed on another machine from the same records may differ


def difference(stored: Any, run: TrackedRun, sent: SentRun | None = None) -> str | None:
    """Return how a run on the server differs from what it should be, in words; None if it does not.

    A run that was `sent` just now must be equal, down to the bytes of its files; the numbers of others to six
    digits.
    """
    try:
        return next(_differences(stored, run, sent), None)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return f"it cannot be read: {reason_of(error)}"


def _differences(stored: Any, run: TrackedRun, sent: SentRun | None) -> Iterator[str]:
    tolerance = 0.0 if sent else _ROUNDING
    if stored.state != "finished":
        yield f"its state is {stored.state}"
    if stored.name != run.name:
        yield "the name"
    if stored.group != run.group:
        yield "the group"
    config, summary = storable_config(stored.config), storable_row(stored.summary_metrics)
    for what, expected, found in (("config", run.config, config), ("summary", run.summary, summary)):
        for name, value in expected.items():
            if not are_close(found.get(name), value, tolerance):
                yield f"the {what}, at {name}"
    history = sorted(stored.history(samples=_MAX_ROWS, pandas=False), key=lambda row: row["_step"])
    rows = [{k: v for k, v in storable_row(row).items() if not k.startswith("_")} for row in history]
    if run.rows and not are_close(rows, run.rows, tolerance):
        yield f"the rows: {len(rows)} there, {len(run.rows)} sent"
    media = rows[0] if rows else {}
    for path, digest in run.images.items():
        if (media.get(figure_key(path)) or {}).get("sha256") != digest:
            yield f"the figure {path}"
    for name, table in run.tables.items():
        if (media.get(name) or {}).get("nrows") != len(table["data"]):
            yield f"the table {name}"
    if sent:
        yield from _different_files(stored, sent)
    if run.lines and not _has_records(stored, run):
        yield "the artifact of the records"


def are_close(one: Any, other: Any, tolerance: float) -> bool:
    """Return whether two JSON values are equal, numbers within a relative tolerance."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(
            are_close(v, other[name], tolerance) for name, v in one.items()
        )
    if isinstance(one, list) and isinstance(other, list):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(are_close(a, b, tolerance) for a, b in pairs)
    if type(one) in (int, float) and type(other) in (int, float):  # True is no number in JSON
        return one == other or math.isclose(one, other, rel_tol=tolerance)
    return type(one) is type(other) and bool(one == other)


def _different_files(stored: Any, sent: SentRun) -> Iterator[str]:
    """Yield the uploaded files that the server does not have, byte by byte."""
    files = {file.name: file for file in as_list(stored.files(per_page=_PAGE))}
    local = {
        p.relative_to(sent.files).as_posix(): p for p in sorted(sent.files.rglob("media/**/*")) if p.is_file()
    }
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
        for name, path in local.items():
            if name in files:
                with contextlib.closing(files[name].download(root=folder, replace=True)) as copy:
                    if Path(copy.name).read_bytes() == path.read_bytes():
                        continue
            yield f"the file {name}"


def _has_records(stored: Any, run: TrackedRun) -> bool:
    """Return whether a run has an artifact with the digest of these records."""
    with contextlib.suppress(
        AssertionError
    ):  # the client cannot list an artifact whose upload did not end (0.31)
        expected = (ARTIFACT, records_artifact(run).digest, "COMMITTED")
        artifacts = as_list(stored.logged_artifacts(per_page=_PAGE))
        return expected in [(each.type, each.digest, each.state) for each in artifacts]
    return False


def as_list(page: Any) -> list[Any]:
    """Return the items of a listing; `list()` would ask for its length first, and swallow what that
    raises.
    """
    return [item for item in page]  # noqa: C416

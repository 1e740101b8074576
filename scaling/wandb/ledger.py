"""The ledger of a results folder, wandb.json: which run went where.

{"runs": {id: {series, name, job_type, "places": [{mode, entity, project, base_url, directory}]}}}
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from scaling.core import store
from scaling.wandb.tracked_run import TrackedRun

NAME = "wandb.json"
Ledger = dict[str, dict[str, Any]]  # run id -> entry


def read(folder: Path) -> Ledger:
    """Return the entries of the ledger that are intact: sending a run again adds nothing that is there."""
    content = store.read_json(folder / NAME)
    runs = content.get("runs") if isinstance(content, dict) else None
    entries = runs.items() if isinstance(runs, dict) else ()
    return {
        name: entry for name, entry in entries if isinstance(entry, dict) and _is_intact(entry.get("places"))
    }


def _is_intact(places: Any) -> bool:
    return isinstance(places, list) and all(isinstance(place, dict) for place in places)


def directories(ledger: Ledger, where: Mapping[str, Any]) -> dict[str, str]:
    """Return the runs that went to a destination: id -> directory of the copy, "" online."""
    return {
        name: str(place.get("directory"))
        for name, entry in ledger.items()
        for place in entry["places"]
        if where.items() <= place.items()
    }


def removed_series(ledger: Ledger, runs: Iterable[TrackedRun]) -> tuple[str, ...]:
    """Return the series that this folder once had and no longer has, such as a weak one that was refused
    since.
    """
    return tuple(
        sorted({str(entry.get("series")) for entry in ledger.values()} - {run.series for run in runs})
    )


def update(
    folder: Path,
    ledger: Ledger,
    runs: Iterable[TrackedRun],
    where: Mapping[str, Any],
    arrived: Mapping[str, str],
) -> None:
    """Add every run, and the destination to those that `arrived`: id -> directory of the copy. Write the
    ledger.
    """
    for run in runs:
        new = {"series": run.series, "name": run.name, "job_type": run.job_type, "places": []}
        entry = ledger.setdefault(run.id, new)
        if run.id in arrived:
            others = [place for place in entry["places"] if not where.items() <= place.items()]
            entry["places"] = [*others, {**where, "directory": arrived[run.id]}]
    store.write_json(folder / NAME, {"runs": ledger})

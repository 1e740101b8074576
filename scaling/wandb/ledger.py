"""The ledger of a folder: which run went where, beside the records. The server is asked what it has; the disk is not.

{"runs": {id: {"series": ..., "name": ..., "job_type": ..., "places": [{mode, entity, project, base_url, directory}]}}}
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from scaling.core import store
from scaling.wandb.runs import TrackedRun

NAME = "wandb.json"


def read(folder: Path) -> dict[str, Any]:
    """The runs of the ledger, or none where it is damaged: sending again adds nothing that is there."""
    ledger = store.read_json(folder / NAME)
    runs = ledger.get("runs") if isinstance(ledger, dict) else None
    whole = {}
    for name, run in runs.items() if isinstance(runs, dict) else ():
        places = run.get("places") if isinstance(run, dict) else None
        if isinstance(places, list) and all(isinstance(place, dict) for place in places):
            whole[name] = run
    return whole


def kept_offline(folder: Path, ledger: Mapping[str, Any], run: TrackedRun, place: Mapping[str, Any]) -> bool:
    """Whether an offline copy of a run lies there still."""
    entry = ledger.get(run.id, {})
    return any(
        (folder / "wandb" / str(known.get("directory"))).is_dir()
        for known in entry.get("places", ())
        if _is(known, place)
    )


def directories(ledger: Mapping[str, Any]) -> set[str]:
    """Return the directories of all offline copies in the ledger."""
    return {str(place.get("directory")) for entry in ledger.values() for place in entry["places"]}


def sent(ledger: Mapping[str, Any], place: Mapping[str, Any]) -> set[str]:
    """The runs that went to a place, by this folder's own account."""
    return {name for name, entry in ledger.items() if any(_is(known, place) for known in entry["places"])}


def gone(ledger: Mapping[str, Any], runs: Iterable[TrackedRun]) -> list[str]:
    """Series that this folder once made and makes no more, such as a weak one that was refused since."""
    series = {run.series for run in runs}
    return sorted({str(entry.get("series")) for entry in ledger.values()} - series)


def remember(
    folder: Path,
    ledger: dict[str, Any],
    runs: Iterable[TrackedRun],
    place: dict[str, Any],
    done: Mapping[str, str],
) -> None:
    """Write down every run, and where those in `done` went: id -> its directory, empty where nothing lies on the disk."""
    for run in runs:
        entry = ledger.setdefault(
            run.id, {"series": run.series, "name": run.name, "job_type": run.job_type, "places": []}
        )
        if run.id in done:
            others = [known for known in entry["places"] if not _is(known, place)]
            entry["places"] = [*others, {**place, "directory": done[run.id]}]
    store.write_json(folder / NAME, {"runs": ledger})


def _is(known: Mapping[str, Any], place: Mapping[str, Any]) -> bool:
    return {name: known.get(name) for name in place} == dict(place)

"""Format the facts of an environment (hardware, software), and find facts in which environments differ."""

from collections.abc import Iterable, Mapping
from typing import Any

from scaling.core.environment import OF_THE_CASE
from scaling.core.record import Record


def environment_columns(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the facts of an environment as (name, text) pairs. Commas separate items of lists and dicts."""
    columns = []
    for name, value in environment.items():
        if isinstance(value, Mapping):
            value = [f"{key} {item}" for key, item in value.items()]
        if isinstance(value, list):
            value = ", ".join(map(str, value))
        columns.append((name, "" if value is None else str(value)))
    return columns


def environment_differences(groups: Iterable[Iterable[Record]]) -> dict[str, list[str]]:
    """Return the environment facts that differ between groups of records, as a dict from name to strings.

    Each group has one string, and each package version is a fact. Facts that depend on the case are omitted.
    """
    facts = [{fact for record in records for fact in _facts(record.environment)} for records in groups]
    values = {
        name: [_join_values(text for key, text in group if key == name) for group in facts]
        for name in sorted({name for group in facts for name, _ in group})
    }
    return {name: texts for name, texts in values.items() if len(set(texts)) > 1}


def _join_values(texts: Iterable[str]) -> str:
    return " or ".join(sorted(text or "none" for text in texts)) or "none"


def _facts(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    common = {name: value for name, value in environment.items() if name not in OF_THE_CASE}
    parts = (value if isinstance(value, Mapping) else {name: value} for name, value in common.items())
    return [fact for part in parts for fact in environment_columns(part)]

"""Format the facts of environments (hardware and software), and find those in which environments differ."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scaling.analysis.cases import group_by
from scaling.core.environment import OF_THE_CASE
from scaling.core.record import Record


def environment_columns(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the facts of an environment as (name, text) pairs. Commas separate items of lists and dicts."""
    columns = []
    for name, value in environment.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{k} {v}" for k, v in value.items())
        elif isinstance(value, list):
            value = ", ".join(map(str, value))
        columns.append((name, "" if value is None else str(value)))
    return columns


def environment_differences(groups: Iterable[Iterable[Record]]) -> dict[str, list[str]]:
    """Return a dict from each environment fact that differs between groups of records to its value per group.

    The values are text. The version of each package is a separate fact. Facts that depend on the case, such
    as its cores, are omitted.
    """
    facts = [
        group_by({fact for record in records for fact in _facts(record.environment)}, lambda fact: fact[0])
        for records in groups
    ]
    values = {
        name: [
            " or ".join(sorted(text or "none" for _, text in group.get(name, [("", "")]))) for group in facts
        ]
        for name in sorted({name for group in facts for name in group})
    }
    return {name: texts for name, texts in values.items() if len(set(texts)) > 1}


def _facts(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in environment.items():
        if name not in OF_THE_CASE:
            yield from environment_columns(value if isinstance(value, Mapping) else {name: value})

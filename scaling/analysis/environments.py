"""Compare the environments (hardware and software) of records, and format their fields as text."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from scaling.core.grouping import group_by
from scaling.core.record import Record

# Fields that are derived from others, or that differ between the cases of one environment.
OF_THE_CASE = ("digest", "setting", "load", "cores", "shape", "job", "restarts")
BOOLEAN_WORDS = {"True": "yes", "False": "no"}  # text of a fact in `environment_columns` -> text for a reader


def environment_columns(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the fields of an environment as (name, text) pairs. The items of a list are joined by commas."""
    columns = []
    for name, value in environment.items():
        if isinstance(value, Mapping):
            value = [f"{key} {subvalue}" for key, subvalue in value.items()]
        if isinstance(value, list):
            value = ", ".join(map(str, value))
        columns.append((name, "" if value is None else str(value)))
    return columns


def environment_differences(groups: Iterable[Iterable[Record]]) -> dict[str, list[str]]:
    """Return {field: [text for each group]} for the environment fields that differ between groups.

    Fields that depend on the case are omitted.
    """
    fields_by_group = [_study_facts(records) for records in groups]
    names = sorted({name for fields in fields_by_group for name in fields})
    values = {name: [fields.get(name, "none") for fields in fields_by_group] for name in names}
    return {name: texts for name, texts in values.items() if len(set(texts)) > 1}


def describe_environments(records: Iterable[Record]) -> str:
    """Return text that counts the environments and names their differences, or "" for one environment.

    For example, the text is "2 environments that differ in jax (0.10.2, 0.11.0)".
    """
    groups = group_by(records, lambda record: record.setting)
    differences = environment_differences(groups.values())
    descriptions = [f"{name} ({', '.join(texts)})" for name, texts in differences.items() if name != "engine"]
    suffix = f" that differ in {', '.join(descriptions)}" if descriptions else ""
    return f"{len(groups)} environments{suffix}" if len(groups) > 1 else ""


def _study_facts(records: Iterable[Record]) -> dict[str, str]:
    """Return {name: text} for the environment fields that do not depend on the case.

    If the records have several values of a field, the text joins them with 'or'.
    """
    texts = defaultdict[str, set[str]](set)
    for record in records:
        for name in record.environment.keys() - OF_THE_CASE:
            value = record.environment[name]
            for fact, text in environment_columns(value if isinstance(value, Mapping) else {name: value}):
                texts[fact].add(BOOLEAN_WORDS.get(text, text) or "none")
    return {fact: " or ".join(sorted(texts_of_fact)) for fact, texts_of_fact in texts.items()}

"""Help on fields: what each key of conf/config.yaml means, which values it takes, and its default, as text of 80 columns.

The meanings are the comments of that file, the values and defaults those that a case is checked against. Does not know Hydra.
"""

import dataclasses
import json
import pkgutil
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.core.case import CEILING, CHOICES, OPTIONS, Case
from scaling.peers import interface
from scaling.study.grid import SCALINGS

MARK = "@FIELDS@"  # where the template of the help has the fields
_WIDTH, _NAME = 79, 22
_KEY = re.compile(r"^( *)([a-z_]+):\s*([^#]*?)\s*(?:#\s*(.*))?$")
_DEFAULTS = {
    field.name: field.default
    for field in dataclasses.fields(Case)
    if field.default is not dataclasses.MISSING
} | {"scaling": "strong"}


@dataclass(frozen=True)
class Field:
    """A key of the configuration, with its default as the file has it and its comment."""

    name: str
    default: str
    meaning: str


def fill(text: str) -> str:
    """Return a text with every line that is longer than 79 columns broken."""
    return "\n".join(
        textwrap.fill(line, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        if len(line) > _WIDTH else line for line in text.splitlines()
    )  # fmt: skip


def describe(conf: Path) -> str:
    """Return every field with its meaning, the values it takes, and its default."""
    allowed = {name: list(values) for name, values in (CHOICES | OPTIONS).items()} | _allowed()
    return "\n".join(
        _lines(each, allowed) for each in read_fields((conf / "config.yaml").read_text(encoding="utf-8"))
    )


def read_fields(text: str) -> list[Field]:
    """Return the fields of a file of YAML, with their comments; those of a mapping have its name before their own."""
    found: list[Field] = []
    group = ""
    for line in text.splitlines():
        if match := _KEY.match(line):
            indent, name, default, comment = match.groups()
            if not indent:
                group = name
            if default or not _is_group(name):
                found.append(Field(f"{group}.{name}" if indent else name, default, comment or ""))
        elif found and (more := re.match(r"^ +# ?(.*)$", line)):
            found[-1] = dataclasses.replace(found[-1], meaning=f"{found[-1].meaning} {more[1]}")
        if line.startswith("hydra:"):
            break
    return [each for each in found if each.name not in ("hydra", "defaults")]


def _is_group(name: str) -> bool:
    """Return whether a key without a value is a mapping, which has a line for each of its own keys."""
    return name in ("sampling", "defaults", "hydra")


def _allowed() -> dict[str, list[Any]]:
    """Return the values of fields that no list of `case` has."""
    workloads = sorted(
        {each.name for each in pkgutil.iter_modules([str(Path(__file__).parents[1] / "workloads")])}
        - {CEILING}
    )
    return {
        "workload": [*workloads, "an import path of your own"],
        "engine": [interface.JAX, *interface.engines(), "an import path of your own"],
        "jit": [True, False], "overlap": [True, False], "dry_run": [True, False], "nested": [True, False],
        "bind": [True, False], "oversubscribe": [True, False], "wait": [True, False, None], "retry": [True, False],
        "scaling": list(SCALINGS),
    }  # fmt: skip


def _lines(field: Field, allowed: Mapping[str, Sequence[Any]]) -> str:
    """Return a field as lines: its name, its meaning, then its values and default."""
    default = re.sub(r"\$\{.*?\}", "<study>", field.default)
    if field.name in _DEFAULTS and default == "null":
        default = _text(_DEFAULTS[field.name])
    values = f" Values: {', '.join(map(_text, allowed[field.name]))}." if field.name in allowed else ""
    meaning = field.meaning.strip()
    sentence = f"{meaning}{'' if meaning.endswith('.') else '.'}" if meaning else ""
    words = f"{sentence}{values} Default: {default or 'none'}.".strip()
    indent = " " * _NAME
    first = f"  {field.name}".ljust(_NAME)
    return textwrap.fill(
        words, _WIDTH, initial_indent=first if len(first) <= _NAME else f"{first} ", subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _text(value: Any) -> str:
    """Return a value as it is written in YAML."""
    return value if isinstance(value, str) else json.dumps(value)

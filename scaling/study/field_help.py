"""Help on fields: what each key of conf/config.yaml means, which values it takes, and its default, as text of
80 columns.

The meanings are the comments of that file, the values and defaults those that a case is checked against. Does
not know Hydra.
"""

import dataclasses
import json
import pkgutil
import re
import textwrap
from collections.abc import Collection
from pathlib import Path
from typing import Any

from scaling.core.case import CEILING, CHOICES, OPTIONS, Case
from scaling.peers import interface
from scaling.study.grid import SCALINGS

MARK = "@FIELDS@"  # where the template of the help has the fields
_WIDTH, _NAME = 79, 22
_KEY = re.compile(r"^( *)([a-z_]+):\s*([^#]*?)\s*(?:#\s*(.*))?$")
_GROUPS = ("defaults", "sampling")  # keys whose value is a mapping, with a line for each of its own keys
_FLAGS = ("jit", "overlap", "dry_run", "nested", "bind", "oversubscribe", "retry")
_MISSING = dataclasses.MISSING
_DEFAULTS = {each.name: each.default for each in dataclasses.fields(Case) if each.default is not _MISSING}


def fill(text: str) -> str:
    """Return a text with every line that is longer than 79 columns broken."""
    return "\n".join(
        textwrap.fill(line, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        if len(line) > _WIDTH else line for line in text.splitlines()
    )  # fmt: skip


def describe(conf: Path) -> str:
    """Return every field with its meaning, the values it takes, and its default."""
    built_in = {each.name for each in pkgutil.iter_modules([str(Path(__file__).parents[1] / "workloads")])}
    allowed: dict[str, Collection[Any]] = {
        **CHOICES, **OPTIONS, **dict.fromkeys(_FLAGS, (True, False)), "wait": (True, False, None),
        "scaling": SCALINGS, "workload": [*sorted(built_in - {CEILING}), "an import path of your own"],
        "engine": [interface.JAX, *interface.engines(), "an import path of your own"],
    }  # fmt: skip
    text = (conf / "config.yaml").read_text(encoding="utf-8").partition("\nhydra:")[0]
    fields = _read_fields(text).items()
    return "\n".join(
        _entry(name, default, meaning, allowed.get(name, ())) for name, (default, meaning) in fields
    )


def _read_fields(text: str) -> dict[str, tuple[str, str]]:
    """Return the default and comment of each key of a YAML file; nested keys have a prefix."""
    found: dict[str, tuple[str, str]] = {}
    group = name = ""
    for line in text.splitlines():
        if match := _KEY.match(line):
            indent, key, default, comment = match.groups()
            name = f"{group}.{key}" if indent else key
            if key in _GROUPS:
                group = key
            else:
                found[name] = default, comment or ""
        elif name in found and (more := re.match(r"^ +# ?(.*)$", line)):
            found[name] = found[name][0], f"{found[name][1]} {more[1]}"
    return found


def _entry(name: str, default: str, meaning: str, allowed: Collection[Any]) -> str:
    """Return a field as lines: its name, its meaning, then its values and default."""
    default = re.sub(r"\$\{.*?\}", "<study>", default)
    if default == "null":
        default = _in_yaml((_DEFAULTS | {"scaling": "strong"}).get(name))
    sentence = re.sub(r"(?<=[^.])$", ".", meaning.strip())
    values = f" Values: {', '.join(map(_in_yaml, allowed))}." if allowed else ""
    first = f"  {name}".ljust(_NAME)
    return textwrap.fill(
        f"{sentence}{values} Default: {default or 'none'}.".strip(), _WIDTH, break_long_words=False, break_on_hyphens=False,
        initial_indent=first if len(first) <= _NAME else f"{first} ", subsequent_indent=" " * _NAME,
    )  # fmt: skip


def _in_yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

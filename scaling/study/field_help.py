"""Format the help text for all study fields from the comments in conf/config.yaml and the class `Case`."""

import json
import re
import textwrap
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from scaling.core.case import CEILING, CHOICES, OPTIONS, SCALINGS, Case, built_in
from scaling.core.grouping import group_by
from scaling.peers import interface
from scaling.study.arguments import FLAGS

_WIDTH, _NAME_WIDTH = 79, 22  # characters in a line and in its first column
# A key, its default, and its comment, which may continue on the following lines.
_KEY = re.compile(r"^( *)([a-z_]+):[ ]*([^#\n]*?)[ ]*(?:#[ ]*(.*(?:\n +#.*)*))?$", re.MULTILINE)
_GROUPS = ("defaults", "sampling")  # keys whose value is a nested mapping or list


def describe_groups(folders: Sequence[Path]) -> str:
    """Return text with a line such as "cluster: local, none, slurm" for each subfolder of YAML files."""
    files = [path.relative_to(folder) for folder in folders for path in folder.glob("*/**/*.yaml")]
    groups = sorted(group_by(files, lambda path: str(path.parent)).items())
    lines = [f"{group}: {', '.join(sorted({path.stem for path in paths}))}" for group, paths in groups]
    return "\n".join(
        textwrap.fill(line, _WIDTH, subsequent_indent="  ", break_on_hyphens=False) for line in lines
    )


def describe(conf: Path) -> str:
    """Return text with the name, meaning, allowed values and default of each field in `conf`/config.yaml."""
    valid_values: dict[str, Collection[Any]] = {
        **CHOICES, **OPTIONS, **dict.fromkeys(FLAGS, (True, False)), "wait": (True, False, None),
        "scaling": SCALINGS,
        "workload": [*sorted(built_in("workloads") - {CEILING}), "an import path of your own"],
        "engine": [interface.JAX, *interface.ENGINES, "an import path of your own"],
    }  # fmt: skip
    text = (conf / "config.yaml").read_text(encoding="utf-8")
    return "\n".join(
        _format_field(name, *words, valid_values.get(name, ())) for name, words in _read_fields(text).items()
    )


def _read_fields(text: str) -> dict[str, tuple[str, str]]:
    """Return {key: (default, comment)} for each key in config.yaml, such as "sampling.seconds"."""
    fields: dict[str, tuple[str, str]] = {}
    group = ""
    for indent, key, default, comment in _KEY.findall(text):
        if key in _GROUPS:
            group = key
        else:
            fields[f"{group}.{key}" if indent else key] = default, re.sub(r"\n +# ?", " ", comment)
    return fields


def _format_field(name: str, default: str, meaning: str, valid_values: Collection[Any]) -> str:
    default = re.sub(r"\$\{.*?\}", "<study>", default)
    if default == "null":
        default = _in_yaml("strong" if name == "scaling" else getattr(Case, name, None))
    sentence = re.sub(r"(?<=[^.])$", ".", meaning.strip())
    values = f" Values: {', '.join(map(_in_yaml, valid_values))}." if valid_values else ""
    first = f"  {name}".ljust(_NAME_WIDTH)
    return textwrap.fill(
        f"{sentence}{values} Default: {default or 'none'}.".strip(), _WIDTH, break_long_words=False,
        break_on_hyphens=False, initial_indent=first if len(first) <= _NAME_WIDTH else f"{first} ",
        subsequent_indent=" " * _NAME_WIDTH,
    )  # fmt: skip


def _in_yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

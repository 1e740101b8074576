"""Check YAML files against limits on size, nesting and aliases before they are loaded.

A file must be UTF-8 text that contains a single mapping. The limits ensure that a file can be loaded with
little time and memory. Each use of an alias counts as all values that it repeats.
"""

import os
from pathlib import Path

import yaml

from scaling.core.case import Refusal

_LARGEST = 256 * 1024  # maximum size of a file in bytes
_DEEPEST = 40  # maximum number of nesting levels
_MOST = 100_000  # maximum number of nodes, including those that aliases repeat


def check(path: Path) -> None:
    """Raise `Refusal` if a YAML file is not UTF-8 text, too large, too deeply nested or not a mapping."""
    if not os.path.isfile(path):  # or not a valid path
        return
    name = _format_path(path)
    with path.open("rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        text = f"a configuration has at most {_LARGEST // 1024} kB; split it with `parts`"
        raise Refusal(f"{name} is too large: {text}")
    try:
        _check_events(name, content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise Refusal(f"{name} is not UTF-8 at byte {error.start}: save it as UTF-8") from None
    except yaml.YAMLError as error:
        raise Refusal(describe(error, name)) from None


def describe(error: yaml.YAMLError, name: str = "") -> str:
    """Return a description of a YAML error: the file (by default the one in the error), line and problem."""
    mark = getattr(error, "problem_mark", None)
    place = name or (_format_path(Path(mark.name)) if mark else "a configuration file")
    place += f", line {mark.line + 1}" if mark is not None else ""
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or error
    return (
        f"{place}: {problem}; tags and tabs for indentation are not allowed, "
        "and text with special characters needs quotes"
    )


def _check_events(name: str, text: str) -> None:
    """Raise `Refusal` if a YAML text exceeds the limits or is not a single mapping. Do not load it."""
    sizes: dict[str | None, int] = {}  # anchor -> number of nodes in its value
    parents: list[tuple[str | None, int]] = []  # (anchor, number of nodes before) of the open collections
    count = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        wrong = ""
        if isinstance(event, yaml.NodeEvent) and count == 0:
            wrong = _why_no_mapping(event)
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = parents.pop()
            sizes[anchor] = count - before
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in parents):
                wrong = f"the alias *{event.anchor} is within the value that it names, which contains itself"
            count += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.NodeEvent):
            sizes[event.anchor] = 1
            if isinstance(event, yaml.CollectionStartEvent):
                parents.append((event.anchor, count))
            count += 1
        elif isinstance(event, yaml.DocumentStartEvent) and count:
            wrong = "a second document begins, and a file contains one: remove the line ---"
        if len(parents) > _DEEPEST:
            wrong = f"values are nested too deep; at most {_DEEPEST} levels are allowed"
        if count > _MOST:
            wrong = f"more than {_MOST} values, those of an alias counted at each use: use fewer aliases"
        if wrong:
            raise Refusal(f"{name}, line {event.start_mark.line + 1}: {wrong}")


def _why_no_mapping(event: yaml.NodeEvent) -> str:
    """Return why the first node of a file is not a mapping, or "" if it is one or null."""
    is_scalar = isinstance(event, yaml.ScalarEvent)
    is_null = is_scalar and event.implicit[0] and event.value in ("", "~", "null", "Null", "NULL")
    if isinstance(event, yaml.MappingStartEvent) or is_null:
        return ""
    described = repr(event.value) if is_scalar else "a list"
    return f"a file is a mapping, such as `workload: linear`, not {described:.80}"


def _format_path(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else path.name

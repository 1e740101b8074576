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
    """Raise `Refusal` if a YAML file is not UTF-8 text, too large, too deeply nested or not a mapping.

    A file that does not exist is ignored.
    """
    if not os.path.isfile(path):  # or not a valid path
        return
    with path.open("rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise Refusal(
            f"{_format_path(path)} is too large: a configuration has at most {_LARGEST // 1024} kB; "
            "split it with `parts`"
        )
    try:
        _check_events(path, content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise Refusal(f"{_format_path(path)} is not UTF-8 at byte {error.start}: save it as UTF-8") from None
    except yaml.YAMLError as error:
        raise Refusal(describe(error, path)) from None


def describe(error: yaml.YAMLError, path: Path | None = None) -> str:
    """Return a description of a YAML error: the file, the line and the problem.

    If `path` is not given, the name of the file is taken from the error.
    """
    mark = getattr(error, "problem_mark", None)
    file = path or (Path(mark.name) if mark is not None else None)
    place = _format_path(file) if file else "a configuration file"
    place += f", line {mark.line + 1}" if mark is not None else ""
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or error
    return (
        f"{place}: {problem}; tags and tabs for indentation are not allowed, "
        "and text with special characters needs quotes"
    )


def _check_events(path: Path, text: str) -> None:
    """Raise `Refusal` if a YAML text exceeds the limits or is not a single mapping. Do not load it."""
    sizes: dict[str | None, int] = {}  # anchor -> number of nodes in its value
    parents: list[tuple[str | None, int]] = []  # (anchor, number of nodes before) of the open collections
    count = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        line = f"{_format_path(path)}, line {event.start_mark.line + 1}"
        if isinstance(event, yaml.NodeEvent) and count == 0:
            _check_root(line, event)
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = parents.pop()
            sizes[anchor] = count - before
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in parents):
                text = f"the alias *{event.anchor} is within the value that it names, which contains itself"
                raise Refusal(f"{line}: {text}")
            count += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.NodeEvent):
            sizes[event.anchor] = 1
            if isinstance(event, yaml.CollectionStartEvent):
                parents.append((event.anchor, count))
            count += 1
        for wrong, words in (
            (isinstance(event, yaml.DocumentStartEvent) and count > 0,
             "a second document begins, and a file contains one: remove the line ---"),
            (len(parents) > _DEEPEST, f"values are nested too deep; at most {_DEEPEST} levels are allowed"),
            (count > _MOST,
             f"more than {_MOST} values, those of an alias counted at each use: use fewer aliases"),
        ):  # fmt: skip
            if wrong:
                raise Refusal(f"{line}: {words}")


def _check_root(line: str, event: yaml.NodeEvent) -> None:
    scalar = isinstance(event, yaml.ScalarEvent)
    null = scalar and event.implicit[0] and event.value in ("", "~", "null", "Null", "NULL")
    if not isinstance(event, yaml.MappingStartEvent) and not null:
        described = repr(event.value) if scalar else "a list"
        raise Refusal(f"{line}: a file is a mapping, such as `workload: linear`, not {described:.80}")


def _format_path(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else path.name

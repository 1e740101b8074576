"""Check that the YAML files of a study are small and well-formed, before Hydra loads them.

A file must be UTF-8 text that contains a single mapping. Limits on size, nesting and number of values ensure
that loading the file takes little time and memory. Each use of an alias counts as all values that it repeats.
"""

import os
from pathlib import Path

import yaml

from scaling.core.case import Refusal

_MAX_BYTES = 256 * 1024  # maximum size of a file in bytes
_MAX_DEPTH = 40  # maximum number of nesting levels
_MAX_NODES = 100_000  # maximum number of nodes, including those that aliases repeat


def check_selected(folder: Path, group: str, name: str) -> None:
    """Check the file of a group, such as study=NAME, and the files that its defaults list may name.

    Args:
        folder: The folder of --config-dir. Files elsewhere are not checked.
        group: The name of the group, such as "study".
        name: The name of the file in the group, with or without the suffix ".yaml".

    Raises:
        Refusal: A file is invalid, see `check`.
    """
    checked, waiting = set[Path](), [folder / group / f"{name.removesuffix('.yaml')}.yaml"]
    while waiting:
        path = waiting.pop()
        if path in checked or not os.path.isfile(path):  # Hydra reports missing files and invalid paths
            continue
        check(path)
        checked.add(path)
        for stem in _default_stems(path):
            waiting += [other for other in folder.rglob("*.yaml") if other.stem == stem]


def _default_stems(path: Path) -> set[str]:
    """Return the file names without suffix in the defaults list of a YAML file that was checked."""
    try:
        content = yaml.safe_load(path.read_text("utf-8-sig"))
    except (yaml.YAMLError, ValueError):  # such as a tag or a date that does not exist: Hydra reports it
        return set()
    entries = content.get("defaults") if isinstance(content, dict) else None
    names = set[str]()
    for entry in entries if isinstance(entries, list) else []:
        values = list(entry.values()) if isinstance(entry, dict) else [entry]
        for value in values:
            names |= {str(name) for name in (value if isinstance(value, list) else [value])}
    return {Path(name.partition("@")[0]).name.removesuffix(".yaml") for name in names}


def check(path: Path) -> None:
    """Raise `Refusal` if a YAML file is not UTF-8 text or not a mapping, or if it exceeds a limit."""
    name = _format_path(path)
    with path.open("rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        text = f"a configuration has at most {_MAX_BYTES // 1024} kB; split it with `parts`"
        raise Refusal(f"{name} is too large: {text}")
    try:
        _check_events(name, content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise Refusal(f"{name} is not UTF-8 at byte {error.start}: save it as UTF-8") from None
    except yaml.YAMLError as error:
        raise Refusal(describe(error, name)) from None


def describe(error: yaml.YAMLError, name: str = "") -> str:
    """Return a description of a YAML error in one line: the file, the line and the problem.

    `name` is the name of the file. If it is empty, the name in the error is used.
    """
    mark = getattr(error, "problem_mark", None)
    place = name or (_format_path(Path(mark.name)) if mark else "a configuration file")
    place += f", line {mark.line + 1}" if mark is not None else ""
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or error
    advice = "tags and tabs for indentation are not allowed, and text with special characters needs quotes"
    if "duplicate key" in str(problem):
        advice = "write each key once; several values are a list, such as devices: [1, 2]"
    return f"{place}: {problem}; {advice}"


def _check_events(name: str, text: str) -> None:
    """Raise `Refusal` if a YAML text exceeds a limit or is not a single mapping. `name` is the file name."""
    sizes: dict[str | None, int] = {}  # anchor -> number of nodes in its value
    parents: list[tuple[str | None, int]] = []  # (anchor, number of nodes before it) of each open collection
    count = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        error = ""
        if isinstance(event, yaml.NodeEvent) and count == 0:
            error = _why_no_mapping(event)
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = parents.pop()
            sizes[anchor] = count - before
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in parents):
                error = f"the alias *{event.anchor} is within the value that it names, which contains itself"
            count += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.NodeEvent):
            sizes[event.anchor] = 1
            if isinstance(event, yaml.CollectionStartEvent):
                parents.append((event.anchor, count))
            count += 1
        elif isinstance(event, yaml.DocumentStartEvent) and count:
            error = "a second document begins, and a file contains one: remove the line ---"
        if len(parents) > _MAX_DEPTH:
            error = f"values are nested too deep; at most {_MAX_DEPTH} levels are allowed"
        if count > _MAX_NODES:
            error = f"more than {_MAX_NODES} values, those of an alias counted at each use: use fewer aliases"
        if error:
            raise Refusal(f"{name}, line {event.start_mark.line + 1}: {error}")


def _why_no_mapping(event: yaml.NodeEvent) -> str:
    """Return an error message if the first node of a file is neither a mapping nor null, otherwise ""."""
    is_scalar = isinstance(event, yaml.ScalarEvent)
    is_null = is_scalar and event.implicit[0] and event.value in ("", "~", "null", "Null", "NULL")
    if isinstance(event, yaml.MappingStartEvent) or is_null:
        return ""
    described = repr(event.value) if is_scalar else "a list"
    return f"a file is a mapping, such as `workload: linear`, not {described:.80}"


def _format_path(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else path.name

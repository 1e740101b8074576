"""Check the size, depth and syntax of YAML files before Hydra loads them, and locate a YAML error."""

import os
from pathlib import Path

import yaml

from scaling.core.case import Refusal

_MAX_BYTES = 256 * 1024  # maximum size of a file in bytes
_MAX_DEPTH = 40  # maximum number of nesting levels
_MAX_NODES = 100_000  # maximum number of nodes, including those that aliases repeat


def check_selected(folder: Path, group: str, name: str) -> None:
    """Check the file `group/name.yaml` in the folder of --config-dir, and the files in its defaults list.

    Raise `Refusal` if a file is not UTF-8 text or not a YAML mapping, or is too large or too deeply nested.
    """
    checked, waiting = set[Path](), [folder / group / f"{name.removesuffix('.yaml')}.yaml"]
    while waiting:
        path = waiting.pop()
        if path not in checked and os.path.isfile(path):  # Hydra reports missing files and invalid paths
            checked.add(path)
            stems = _default_stems(_read_and_check(path))
            waiting += [other for other in folder.rglob("*.yaml") if other.stem in stems]


def _default_stems(text: str) -> set[str]:
    """Return the file names, without suffix, in the defaults list of YAML text that has been checked."""
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):  # such as a tag or a date that does not exist: Hydra reports it
        return set()
    entries = content.get("defaults") if isinstance(content, dict) else None
    names = set[str]()
    for entry in entries if isinstance(entries, list) else []:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            names |= {str(name) for name in (value if isinstance(value, list) else [value])}
    return {Path(name.partition("@")[0]).name.removesuffix(".yaml") for name in names}


def _read_and_check(path: Path) -> str:
    """Return the text of a YAML file. Raise `Refusal` if it is invalid or exceeds a limit."""
    name = _format_path(path)
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise Refusal(f"{name} cannot be read: {error.strerror}; make it readable") from None
    if len(content) > _MAX_BYTES:
        fix = f"a configuration has at most {_MAX_BYTES // 1024} kB; split it with `parts`"
        raise Refusal(f"{name} is too large: {fix}")
    try:
        text = content.decode("utf-8-sig")
        _check_events(name, text)
    except UnicodeDecodeError as error:
        raise Refusal(f"{name} is not UTF-8 at byte {error.start}: save it as UTF-8") from None
    except yaml.YAMLError as error:
        raise Refusal(describe(error, name)) from None
    return text


def describe(error: yaml.YAMLError, name: str = "") -> str:
    """Return a message with the location of a YAML error in the file `name`, the problem, and a fix."""
    mark = getattr(error, "problem_mark", None)
    place = name or (_format_path(Path(mark.name)) if mark else "a configuration file")
    place += f", line {mark.line + 1}" if mark is not None else ""
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or error
    advice = "tags and tabs for indentation are not allowed, and text with special characters needs quotes"
    if "duplicate key" in str(problem):
        advice = "write each key once; several values are a list, such as devices: [1, 2]"
    return f"{place}: {problem}; {advice}"


def _check_events(name: str, text: str) -> None:
    """Raise `Refusal` if YAML text is not a mapping, is nested too deeply, or expands to too many values."""
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
    is_scalar = isinstance(event, yaml.ScalarEvent)
    is_null = is_scalar and event.implicit[0] and event.value in ("", "~", "null", "Null", "NULL")
    if isinstance(event, yaml.MappingStartEvent) or is_null:
        return ""
    described = repr(event.value) if is_scalar else "a list"
    return f"a file is a mapping, such as `workload: linear`, not {described:.80}"


def _format_path(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else path.name

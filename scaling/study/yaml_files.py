"""Check each YAML file just before Hydra loads it, and describe the errors of PyYAML and OmegaConf.

OmegaConf copies the value of an alias at each use. This module limits the copies.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from scaling.core.case import Refusal

_MAX_BYTES = 256 * 1024  # maximum size of a file in bytes
_MAX_DEPTH = 40  # maximum number of nesting levels
_MAX_NODES = 10_000  # maximum number of values, where an alias counts as all values that it repeats


@contextlib.contextmanager
def checked_files() -> Iterator[None]:
    """Raise `Refusal` in this context if Hydra loads a file that is too large or outside of its folder."""
    from hydra._internal.sources_registry import SourcesRegistry
    from hydra.core.plugins import Plugins

    Plugins.instance()  # registers the class that loads files
    loader: Any = SourcesRegistry.instance().resolve("file")
    load = loader.load_config

    def check_and_load(source: Any, config_path: str) -> Any:
        if ".." in Path(config_path).parts:
            name = Path(config_path).name
            raise Refusal(f"{config_path} is a path: name a file in the folder study, such as {name}")
        path = Path(source.path, f"{config_path}.yaml")
        try:
            if path.is_file():
                _check_file(path)
            return load(source, config_path)
        except (yaml.YAMLError, OSError, RecursionError) as error:
            raise Refusal(_describe(error, _format_path(path))) from None

    loader.load_config = check_and_load
    try:
        yield
    finally:
        loader.load_config = load


def _check_file(path: Path) -> None:
    """Raise `Refusal` if a file is too large, not UTF-8, nested too deeply, or repeats too many values."""
    name, content = _format_path(path), path.read_bytes()
    if len(content) > _MAX_BYTES:
        raise Refusal(
            f"{name} is too large: a configuration has at most {_MAX_BYTES // 1024} kB; use `parts`"
        )
    sizes: dict[str | None, int] = {}  # anchor -> number of values in its value
    parents: list[tuple[str | None, int]] = []  # (anchor, number of values before it) of each open collection
    count = 0
    with contextlib.suppress(yaml.YAMLError):  # which Hydra reports
        for event in yaml.parse(_decode(name, content), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if isinstance(event, yaml.CollectionEndEvent):
                anchor, before = parents.pop()
                sizes[anchor] = count - before
            elif isinstance(event, yaml.NodeEvent):
                if isinstance(event, yaml.CollectionStartEvent):
                    parents.append((event.anchor, count))
                count += sizes.get(event.anchor, 1) if isinstance(event, yaml.AliasEvent) else 1
            if len(parents) > _MAX_DEPTH or count > _MAX_NODES:
                limit = f"a file has at most {_MAX_NODES} values, those of an alias counted at each use, and"
                line = event.start_mark.line + 1
                raise Refusal(f"{name}, line {line}: {limit} is at most {_MAX_DEPTH} levels deep")


def _decode(name: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refusal(f"{name} is not UTF-8 at byte {error.start}: save it as UTF-8") from None


def _describe(error: Exception, name: str) -> str:
    """Return a message with the location of an error in the file `name`, the problem, and a fix."""
    mark = getattr(error, "problem_mark", None)
    place = f"{name}, line {mark.line + 1}" if mark else name
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or error
    advice = "tags and tabs for indentation are not allowed, and text with special characters needs quotes"
    if isinstance(error, RecursionError):
        problem, advice = "an alias is within the value that it names, which contains itself", "remove it"
    elif isinstance(error, OSError):
        advice = "make it readable" if error.strerror else "a file is a mapping, such as `workload: linear`"
        problem = error.strerror or error
    elif "duplicate key" in str(problem):
        advice = "write each key once; several values are a list, such as devices: [1, 2]"
    return f"{place}: {problem}; {advice}"


def _format_path(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else path.name

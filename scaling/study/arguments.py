"""Parse the arguments of `scaling run` and `scaling plan`: options and overrides such as devices=2."""

import argparse
import difflib
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from scaling.core.case import FIELDS, Refusal, check_names

_OPTIONS = ("--help", "--multirun", "--cfg", "--config-dir")
FLAGS = ("dry_run", "oversubscribe", "bind", "nested", "wait", "retry", "overlap", "jit")  # boolean fields


class _StoreOnce(argparse.Action):
    """An action that stores the value of an option, and raises `Refusal` if the option is given twice."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if option_string and getattr(namespace, self.dest) is not self.default:
            raise Refusal(f"{self.option_strings[0]} is given twice: write it once")
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that raises `Refusal` for invalid arguments, instead of exiting."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.register("action", None, _StoreOnce)  # the default of `add_argument`

    def error(self, message: str) -> NoReturn:
        """Raise `Refusal` with the error `message`. If an option is unknown, suggest a similar option."""
        unrecognized = message.partition("unrecognized arguments: ")[2].split()
        hint = _hint(unrecognized[0], self._option_string_actions) if unrecognized else ""
        raise Refusal(f"{self.prog}: {message}{hint}; `{self.prog} --help` lists what it takes")


def parse(words: Sequence[str], fields: Sequence[str], command: str = "run") -> argparse.Namespace:
    """Parse the arguments of a command. Return its options and the list `overrides` as a namespace.

    `words` contains the arguments after the command name. `fields` contains the valid names of overrides,
    such as "devices" for devices=2. Raise `Refusal` if an argument is invalid.
    """
    parser = Parser(prog=f"scaling {command}", add_help=False, allow_abbrev=False)
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--cfg", "-c", choices=["job"])
    parser.add_argument("--config-dir", "-cd", metavar="DIR")
    for word in words:  # argparse would read -mode=jacfwd as the option -m
        if word.startswith("-") and word.lstrip("-").partition("=")[0] in fields:
            raise _unknown_option(word, fields)
    options, overrides = parser.parse_known_args(list(words))
    folder = options.config_dir
    if folder is not None and not (os.path.isdir(folder) and os.access(folder, os.R_OK | os.X_OK)):
        example = "such as --config-dir my_conf"
        raise Refusal(f"--config-dir takes a folder that can be read, {example}, not {folder!r}")
    for word in overrides:
        _check_override(word, fields)
    names = [name for word in overrides for name in _list_names(word)]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise Refusal(f"{repeated[0]} is given twice: write it once{_advise_several(repeated[0])}")
    options.overrides = overrides
    return options


def refuse_flags_file(given: str, flags: str) -> None:
    """Raise `Refusal` if XLA would read `flags` from a file, which records do not contain. Quote `given`."""
    if not flags.lstrip().startswith("-"):
        raise Refusal(f"{given} names a file: write the flags that it contains")


def _list_names(override: str) -> list[str]:
    """Return the names that an override sets, such as ["sizes", "sizes.p"] for sizes={p: 8}."""
    name, _, value = override.lstrip("+").partition("=")
    keys = re.findall(r"[{,]\s*(\w+)\s*:", value) if name in ("sizes", "sampling") else []
    return [name, *(f"{name}.{key}" for key in keys)]


def _advise_several(name: str) -> str:
    """Return advice on how to give several values for `name`, or "" if only one value is possible."""
    if name == "study":
        return ", or run several with --multirun study=A,B"
    return f", or give a list such as {name}=[A,B]" if name.partition(".")[0] in FIELDS else ""


def _check_override(word: str, fields: Sequence[str]) -> None:
    if word.startswith("-"):
        raise _unknown_option(word, fields)
    name, equals_sign, _ = word.lstrip("+~").partition("=")
    top_level_key = name.partition(".")[0]
    if not name or not (equals_sign or word.startswith("~")):
        raise Refusal(f"{word!r} is not an override: write FIELD=VALUE, such as {_example(word, fields)}")
    if top_level_key.startswith("hydra"):
        fix = "results=PATH names the folder, and --multirun runs several studies"
        raise Refusal(f"{word} has no effect: {fix}")
    if len(name) == 1:  # a size, such as p
        raise Refusal(f"unknown key {name!r}: a size is written sizes.{word}")
    check_names("key", [top_level_key], fields)
    if word.startswith("~") and not name.startswith("study."):
        raise Refusal(f"{word} removes a key that every study needs: omit it, or write {name}=VALUE")


def _unknown_option(word: str, fields: Sequence[str]) -> Refusal:
    name, equals_sign, value = word.lstrip("-").partition("=")
    similar_fields = difflib.get_close_matches(name.replace("-", "_").lower(), fields, n=1)
    hint = _hint(word, _OPTIONS)
    if similar_fields and (word.startswith("--") or similar_fields[0] == name):
        override = f"{similar_fields[0]}={value}" if equals_sign else _example(similar_fields[0], fields)
        hint = f"; did you mean {override}?"
    choices = f"choose from {', '.join(_OPTIONS)}{hint}"
    return Refusal(f"unknown option {word!r}: {choices}; `scaling run --help` lists every field")


def _hint(word: str, known_words: Iterable[str]) -> str:
    matches = difflib.get_close_matches(word, known_words, n=1)
    return f"; did you mean {matches[0]}?" if matches else ""


def _example(name: str, fields: Sequence[str]) -> str:
    if name in FLAGS:
        return f"{name}=true"
    examples = {"devices": "devices=2", "where": "'where=\"devices == 1\"'"}
    return examples.get(name, f"{name}=VALUE" if name in fields else "study=smoke")

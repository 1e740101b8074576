"""Parse the arguments of `scaling run` and `scaling plan`: options and overrides such as devices=2."""

import argparse
import os
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from scaling.core.case import Refusal, check_names

FLAGS = ("dry_run", "oversubscribe", "bind", "nested", "wait", "retry", "overlap", "jit")  # boolean fields


class StoreOnce(argparse.Action):
    """An action that stores the value of an option, and raises `Refusal` if the option is given twice."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if option_string and getattr(namespace, self.dest) is not self.default:
            raise Refusal(f"{self.option_strings[0]} is given twice: write it once")
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that raises `Refusal` for invalid arguments, instead of exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise `Refusal` with the error `message`."""
        raise Refusal(f"{self.prog}: {message}; `{self.prog} --help` lists what it takes")


def parse(words: Sequence[str], fields: Sequence[str], command: str = "run") -> argparse.Namespace:
    """Parse the arguments of a command. Return its options and the list `overrides` as a namespace.

    `words` contains the arguments after the command name. `fields` contains the valid names of overrides,
    such as "devices" for devices=2. Raise `Refusal` if an argument is invalid.
    """
    parser = Parser(prog=f"scaling {command}", add_help=False, allow_abbrev=False)
    parser.add_argument("--cfg", choices=["job"], action=StoreOnce)
    parser.add_argument("--config-dir", metavar="DIR", action=StoreOnce)
    options, overrides = parser.parse_known_args(list(words))
    folder = options.config_dir
    if folder is not None and not (os.path.isdir(folder) and os.access(folder, os.R_OK | os.X_OK)):
        example = "such as --config-dir my_conf"
        raise Refusal(f"--config-dir takes a folder that can be read, {example}, not {folder!r}")
    if {"--multirun", "-m"} & set(overrides):
        fix = f"write `for s in rbf linear; do scaling {command} study=$s; done`"
        raise Refusal(f"--multirun is not an option, one command takes one study: {fix}")
    names = [name for word in overrides for name in _read_names(word, fields)]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise Refusal(f"{repeated[0]} is given twice: write it once")
    options.overrides = overrides
    return options


def refuse_flags_file(given: str, flags: str) -> None:
    """Raise `Refusal` if XLA would read `flags` from a file, which records do not contain. Quote `given`."""
    if not flags.lstrip().startswith("-"):
        raise Refusal(f"{given} names a file: write the flags that it contains")


def _read_names(word: str, fields: Sequence[str]) -> list[str]:
    """Return the names that an override sets, such as ["sizes", "sizes.p"] for sizes={p: 8}.

    Raise `Refusal` if `word` is not an override of one of `fields`.
    """
    name, equals_sign, value = word.lstrip("+").partition("=")
    if len(name) == 1 and equals_sign:
        raise Refusal(f"unknown key {name!r}: a size is written sizes.{word}")
    check_names("key", [name.partition(".")[0]], [*fields, "--help", "--cfg", "--config-dir"])
    if not equals_sign:
        raise Refusal(f"{word!r} is not an override: write {name}=VALUE")
    keys = re.findall(r"[{,]\s*(\w+)\s*:", value) if name in ("sizes", "sampling") else []
    return [name, *(f"{name}.{key}" for key in keys)]

"""Validate the command-line words of `scaling run` and `scaling plan` with argparse, before Hydra reads them.

An invalid option raises `Refusal`, and the message suggests the most similar valid option. Valid options are
passed on to Hydra.
"""

import argparse
import difflib
from collections.abc import Sequence
from typing import NoReturn

from scaling.core.case import Refusal

_KINDS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")  # values of --info
_HYDRA_KEYS = ("searchpath", "sweeper", "launcher", "verbose")  # keys of `hydra` that have an effect
FLAGS = ("dry_run", "oversubscribe", "bind", "nested", "wait", "retry", "overlap", "jit")  # boolean fields


class Parser(argparse.ArgumentParser):
    """An argument parser whose `error` raises `Refusal` instead of exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise `Refusal` with the message of argparse. If an option is unknown, suggest a similar one."""
        wrong = message.partition("unrecognized arguments: ")[2].split()
        near = difflib.get_close_matches(wrong[0], self._option_string_actions, n=1) if wrong else []
        hint = f"; did you mean {near[0]}?" if near else ""
        raise Refusal(f"{self.prog}: {message}{hint}; `{self.prog} --help` lists what it takes")


def check(words: Sequence[str], fields: Sequence[str]) -> None:
    """Raise `Refusal` if a word of `scaling run` or `scaling plan` is not a valid option or override.

    Args:
        fields: The names of the configuration fields, from which error messages suggest a similar one.
    """
    parser = Parser(prog="scaling run", add_help=False, allow_abbrev=False)
    parser.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
    parser.add_argument("--config-dir", "-cd", metavar="DIR")
    parser.add_argument("--package", "-p", metavar="PACKAGE")
    parser.add_argument("--info", "-i", nargs="?", choices=_KINDS)
    for names in (
        "--help -h",
        "--hydra-help",
        "--resolve",
        "--run -r",
        "--multirun -m",
        "--shell-completion -sc",
    ):
        parser.add_argument(*names.split(), action="store_true")
    options = list(parser._option_string_actions)
    for word in words:
        if word.startswith("-") and word.partition("=")[0] not in options:
            raise _unknown_option(word, fields, options)
    given, overrides = parser.parse_known_args(list(words))
    for word in overrides:
        name = word.lstrip("+~").partition("=")[0]
        if word.startswith("~") and not word.startswith(("~study.", "~hydra")):
            raise Refusal(f"{word} removes a key that every study needs: omit it, or write {name}=VALUE")
        if name.startswith("hydra.") and name.split(".")[1] not in _HYDRA_KEYS:
            raise Refusal(
                f"{name} has no effect: results=PATH names the folder, and --multirun runs several studies"
            )
        if "=" not in word and not word.startswith("~"):
            raise Refusal(f"{word!r} is not an override: write FIELD=VALUE, such as {_example(word, fields)}")
    if given.config_dir is not None and (not given.config_dir or "=" in given.config_dir):
        raise Refusal(f"--config-dir takes a folder, such as --config-dir my_conf, not {given.config_dir!r}")
    if given.package is not None and "=" in given.package:
        raise Refusal(
            f"--package takes the name of a package, such as --package sampling, not {given.package!r}"
        )


def _unknown_option(word: str, fields: Sequence[str], options: Sequence[str]) -> Refusal:
    name, sign, value = word.lstrip("-").partition("=")
    near = difflib.get_close_matches(name.replace("-", "_").lower(), fields, n=1)
    if near and word.startswith("--"):
        meant = f"{near[0]}={value}" if sign else _example(near[0], fields)
    else:
        meant = next(iter(difflib.get_close_matches(word, options, n=1)), "")
    hint = f"; did you mean {meant}?" if meant else ""
    known = ", ".join(option for option in options if option.startswith("--"))
    return Refusal(
        f"unknown option {word!r}: choose from {known}{hint}; `scaling run --help` lists every field"
    )


def _example(name: str, fields: Sequence[str]) -> str:
    flags = {flag: f"{flag}=true" for flag in FLAGS}
    examples = {"devices": "devices=2", "where": "'where=\"devices == 1\"'"} | flags
    return examples.get(name, f"{name}=VALUE" if name in fields else "study=smoke")

"""Entry point of the program `scaling`: call a subcommand, and convert exceptions to exit statuses."""

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

import scaling
from scaling.cli import streams
from scaling.cli.verbs import BAD_INPUT, FAILED, INTERRUPTED, OK, VERBS, overview, parse
from scaling.core.case import Refusal, unknown_name
from scaling.core.environment import hide_secrets
from scaling.study.arguments import Parser
from scaling.workers.machine import AllocationLost

_LONGEST = 1400  # maximum length of an error message, in characters
_CONTINUES = "every finished record is kept, and the same command continues"


def entry() -> None:
    """Prepare the standard streams, run `main`, and exit with the status that it returns."""
    streams.prepare()
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand, and return its exit status. Print an error as one line on standard error.

    Args:
        argv: The name of the subcommand and its arguments, by default those of the command line.
    """
    console = Console(width=None if sys.stdout.isatty() else 140)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _raise_interrupt)
    try:
        return _run_subcommand(list(sys.argv[1:] if argv is None else argv), console)
    except BrokenPipeError:  # the reader of the output has closed the pipe
        return OK
    except Refusal as refusal:
        return _print_error(_one_line(refusal), BAD_INPUT)
    except OSError as error:
        name = error.filename2 or error.filename  # the target of a rename, not the temporary file
        where = f" {Path(str(name)).name}" if name else ""
        return _print_error(f"cannot write{where}: {error.strerror or error}; {_CONTINUES}", FAILED)
    except AllocationLost as lost:
        return _print_error(f"no worker can be started: {lost}; {_CONTINUES}", FAILED)
    except KeyboardInterrupt as stop:
        return _print_error(str(stop) or f"stopped; {_CONTINUES}", INTERRUPTED)


def _run_subcommand(words: list[str], console: Console) -> int:
    name, *rest = words or ["help"]
    if name in ("help", "--help", "-h"):
        if not rest:
            console.print(escape(overview()), highlight=False)
            return OK
        name, rest = rest[0], ["--help", *rest[1:]]
    if name in ("version", "--version", "-V"):
        Parser(prog="scaling version", description="Print the version of the package.").parse_args(rest)
        console.print(scaling.__version__, highlight=False)
        return OK
    if name not in VERBS:
        raise _unknown_verb(name)
    try:
        os.getcwd()
    except FileNotFoundError:
        raise Refusal("the working directory was deleted: change to a folder that exists") from None
    arguments = rest if VERBS[name].arguments is None else parse(name, rest)
    status: int = importlib.import_module(f"scaling.cli.{name}").execute(arguments, console)
    return status


def _unknown_verb(name: str) -> Refusal:
    if "=" in name and not name.startswith("-"):
        return Refusal(f"{name!r} is not a verb: did you mean `scaling run {name}`?")
    options = ["--version", "--help"] if name.startswith("-") else []
    return unknown_name("verb", name, [*VERBS, "version", *options])


def _print_error(text: str, status: int) -> int:
    style = None if status == INTERRUPTED else "red"
    line = f"scaling: {escape(hide_secrets(text))}"
    Console(stderr=True).print(line, soft_wrap=True, highlight=False, style=style)
    return status


def _one_line(refusal: Refusal) -> str:
    """Return the message of a refusal as one line of printable characters, shortened in the middle."""
    text = "".join(char if char.isprintable() else "?" for char in " ".join(str(refusal).split()))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"


def _raise_interrupt(number: int, _frame: Any) -> None:
    """Raise `KeyboardInterrupt` for a signal. The second Ctrl-C exits without cleaning up."""
    if number == signal.SIGINT:
        signal.signal(signal.SIGINT, _exit_at_once)
    raise KeyboardInterrupt


def _exit_at_once(_signal: int, _frame: Any) -> None:
    """Exit immediately, without cleaning up. All finished records are already on disk."""
    os.write(2, b"scaling: stopped at once; every finished record is kept\n")
    os._exit(INTERRUPTED)

"""Entry point of the program `scaling`: call a command, handle signals, print an exception as one line."""

import os
import signal
import sys

if os.path.basename(sys.argv[0]) == "scaling" and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    # This handler is active during the imports below. `main` replaces it.
    signal.signal(signal.SIGINT, lambda *_: (os.write(2, b"scaling: stopped\n"), os._exit(130)))

import atexit
import contextlib
import errno
import importlib
import re
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import scaling
from scaling.cli.commands import (
    BAD_INPUT,
    COMMANDS,
    FAILED,
    INTERRUPTED,
    OK,
    format_overview,
    parse_arguments,
)
from scaling.cli.output import make_console, prepare_streams, print_lines
from scaling.core.case import Refusal, unknown_name
from scaling.core.environment import hide_secrets, package_hash
from scaling.launcher.worker_group import AllocationLost

_MAX_ERROR_LENGTH = 1400  # maximum length of an error message, in characters
_ADDRESS_SPACE = 2**30  # bytes; with much less, OpenBLAS, which NumPy calls, may never return
_CONTINUE_ADVICE = "every finished record is kept: repeat the command to continue"
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def entry() -> None:
    """Run the program `scaling`: prepare the standard streams, call `main`, and exit with its exit status."""
    prepare_streams()
    atexit.register(_ignore_signals)
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, print an error as one line on standard error, and return the exit status.

    `argv` contains the command name and its arguments. None means `sys.argv[1:]`.
    """
    console, words = make_console(), list(sys.argv[1:] if argv is None else argv)
    try:
        for signal_number in _STOP_SIGNALS:
            if signal.getsignal(signal_number) != signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(signal_number, _stop)
        return _run_and_explain(words, console)
    except KeyboardInterrupt as stop:  # may also occur while another error is printed
        text = " before there was any advice" if "advise" in words[:1] else f"; {_CONTINUE_ADVICE}"
        return _print_error(str(stop) or f"stopped{text}", INTERRUPTED)


def _run_and_explain(words: list[str], console: Console) -> int:
    try:
        status = _run_command(words, console)
        sys.stdout.flush()  # an error while Python exits would not change the exit status
        return status
    except BrokenPipeError:  # the reader of the output has closed the pipe
        return OK
    except Refusal as refusal:
        return _print_error(str(refusal), BAD_INPUT)
    except OSError as error:
        name = error.filename2 or error.filename  # the target of a rename, not the temporary file
        status = BAD_INPUT if error.errno == errno.ENAMETOOLONG else FAILED
        reason = f"{name}: {error.strerror}" if name else error.strerror or error
        return _print_error(f"cannot continue: {reason}; correct this, and repeat the command", status)
    except (MemoryError, ImportError, RuntimeError) as error:
        text = str(error) or "out of memory"
        if not isinstance(error, MemoryError) and not re.search("failed to map|new thread", text):
            raise
        return _print_error(f"{text}: check `ulimit -a` and the free memory; {_CONTINUE_ADVICE}", FAILED)
    except AllocationLost as lost:
        return _print_error(f"no worker can be started: {lost}; {_CONTINUE_ADVICE}", FAILED)


def _run_command(words: list[str], console: Console) -> int:
    if words in ([], ["--help"], ["-h"]):
        console.print(format_overview(), markup=False)
        return OK
    if words == ["--version"]:
        console.print(scaling.__version__)
        return OK
    command, *arguments = words
    if command not in COMMANDS:
        if "=" in command and not command.startswith("-"):
            raise Refusal(f"{command!r} is not a command: did you mean `scaling run {command}`?")
        given = " ".join(words) if command.startswith("-") else command
        raise unknown_name("command", given, [*COMMANDS, "--version", "--help"])
    try:
        os.getcwd()
    except FileNotFoundError:
        raise Refusal("the working directory was deleted: change to a folder that exists") from None
    if 0 <= resource.getrlimit(resource.RLIMIT_AS)[0] < _ADDRESS_SPACE:
        raise Refusal("`ulimit -v` permits less than the 1 GiB that this needs: set `ulimit -v unlimited`")
    if command in ("run", "plan", "advise"):
        _refuse_other_package()
        flags = os.environ.get("XLA_FLAGS", "").strip()
        if flags and not flags.startswith("-") and not {"-h", "--help", "--cfg"} & set(arguments):
            raise Refusal(f"XLA_FLAGS={flags} names a file: write the flags that it contains")
    parsed_arguments = parse_arguments(command, arguments) if COMMANDS[command].arguments else arguments
    status: int | None = importlib.import_module(f"scaling.cli.{command}").execute(parsed_arguments, console)
    return status or OK


def _refuse_other_package() -> None:
    """Raise `Refusal` if the working directory contains another module or package named `scaling`.

    The processes that this command starts would import it.
    """
    if os.environ.get("PYTHONSAFEPATH"):
        return
    for file in filter(os.path.isfile, ("scaling.py", "scaling/__init__.py")):
        if file == "scaling.py" or package_hash(Path(file).resolve().parent) != package_hash():
            problem = f"{file} hides the package of this command from its processes"
            raise Refusal(f"{problem}: rename it, change to another folder, or use the command of that copy")


def _print_error(text: str, status: int) -> int:
    """Print an error message as one line of limited length on standard error, and return `status`."""
    line = hide_secrets(" ".join(text.split()))
    if len(line) > _MAX_ERROR_LENGTH:
        line = f"{line[: _MAX_ERROR_LENGTH // 2]} ... {line[-_MAX_ERROR_LENGTH // 2 :]}"
    style = None if status == INTERRUPTED else "red"
    print_lines(Console(stderr=True, emoji=False), [f"scaling: {line}"], style)
    return status


def _stop(_number: int, _frame: Any) -> None:
    """Handle a stop signal: raise `KeyboardInterrupt`, and ignore all later stop signals except Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, _stop_at_once)
    raise KeyboardInterrupt


def _stop_at_once(_number: int, _frame: Any) -> None:
    with contextlib.suppress(OSError):
        os.write(2, b"scaling: stopped at once; every finished record is kept\n")
    os._exit(INTERRUPTED)


def _ignore_signals() -> None:
    """Ignore stop signals while the interpreter exits, because Python restores their default handlers."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    for signal_number in _STOP_SIGNALS:
        signal.signal(signal_number, signal.SIG_IGN)

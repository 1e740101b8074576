"""Define the commands of `scaling` (`Command`): their summaries, options, exit statuses, help and parser."""

import argparse
from dataclasses import dataclass
from typing import Any, NoReturn

from scaling.core.case import Refusal

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130  # exit statuses

Argument = tuple[tuple[str, ...], dict[str, Any]]  # (names, options) of `add_argument`


@dataclass(frozen=True)
class Command:
    """A command such as `scaling run`: its help texts and its command-line arguments."""

    summary: str  # one-line description in `scaling --help` and `scaling COMMAND --help`
    example: str  # example arguments, which `scaling --help` prints before the summary
    arguments: tuple[Argument, ...] = ()  # empty if the module of the command parses its arguments itself


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises `Refusal` for an invalid argument instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        """Raise `Refusal` with `message`, which says why an argument is invalid."""
        raise Refusal(f"{self.prog}: {message}; `{self.prog} --help` lists what it takes")


class _StoreOnce(argparse.Action):
    """An argparse action that stores the value of an option, and refuses an option that is given twice."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if option_string and getattr(namespace, self.dest) is not self.default:
            raise Refusal(f"{self.option_strings[0]} is given twice: write it once")
        setattr(namespace, self.dest, values)


def _argument(*names: str, **options: Any) -> Argument:
    return names, {"action": _StoreOnce} | options


_FOLDER_ARGUMENT = _argument("folder", metavar="DIR", help="a results folder, such as results/smoke")

COMMANDS = {
    "run": Command("run a study, or its missing cases", "study=smoke"),
    "plan": Command("predict a study on other hardware", "study=plan hardware=v5p"),
    "advise": Command("how to differentiate a function", "spring.py:force --points x=1000,17"),
    "status": Command("what is done, running, missing, failed", "results/smoke --watch", (
        _FOLDER_ARGUMENT,
        _argument("--watch", action="store_true",
                  help="repeat until no task is pending or running; Ctrl-C does not affect the jobs"),
        _argument("--all", action="store_true", help="show all tasks and all cases"),
    )),
    "logs": Command("show the logs of a case", "results/smoke 3f2a", (
        _FOLDER_ARGUMENT,
        _argument("key", metavar="KEY", nargs="*", default=[],
                  help="the key or label of a case, or its beginning (`scaling status --all` shows the "
                  "keys), or a workload; shows the cases that failed, or else all"),
        _argument("--all", action="store_true", help="show all selected cases, not only three"),
    )),
    "cancel": Command("cancel the jobs of a study", "results/smoke", (_FOLDER_ARGUMENT,)),
    "report": Command("write the page DIR/report/index.html", "results/smoke", (
        _FOLDER_ARGUMENT,
        _argument("efficiency", metavar="efficiency=E", nargs="?",
                  help="the answer states on how many devices the efficiency is at least E (default: 0.5)"),
        _argument("--proposal", action="store_true",
                  help="also write text, table and figures for a compute-time application"),
    )),
    "compare": Command("what became slower or faster", "results/old results/new", (
        _argument("a", metavar="A", help="a results folder; without B, that of a run with versus=..."),
        _argument("b", metavar="B", nargs="?",
                  help="a newer results folder; exit status 1 if a case in it is slower, failed or ran "
                  "out of memory"),
        _argument("--markdown", metavar="-", help="print only a Markdown table"),
        _argument("--margin", type=float, help="a ratio this close to 1 counts as equal (default: 0.01)"),
    )),
    "lint": Command("list problems of a measurement", "results/smoke", (
        _FOLDER_ARGUMENT,
        _argument("--strict", action="store_true",
                  help="exit with status 1 if there are warnings, not only if there are errors"),
    )),
    "export": Command("write CSV, Parquet, SVG, PNG or PDF", "results/smoke", (
        _FOLDER_ARGUMENT,
        _argument("--format", action="append", default=[],
                  help="csv, parquet, extrap, svg, png, pdf, or a comma-separated list (default: csv)"),
        _argument("--output", metavar="PATH", help="the folder to write into (default: DIR/export)"),
    )),
    "merge": Command("join the results of several clusters", "results/a results/b --output results/ab", (
        _argument("folders", metavar="DIR", nargs="+", help="a results folder; nothing in it is changed"),
        _argument("--output", metavar="PATH", required=True,
                  help="a new folder, or a results folder to add to"),
    )),
    "publish": Command("publish the curves on Weights & Biases", "results/smoke", (
        _FOLDER_ARGUMENT,
        _argument("--project", default="ad-scaling", help="W&B project (default: ad-scaling)"),
        _argument("--entity", default=None, help="W&B entity (default: your own)"),
        _argument("--mode", default="auto",
                  help="online, offline, disabled or auto (default: auto: WANDB_MODE, or online with a key)"),
        _argument("--dashboard", action=argparse.BooleanOptionalAction, default=True,
                  help="save workspace and report too (default: yes, needs ad-scaling[dashboard])"),
    )),
}  # fmt: skip


def format_overview() -> str:
    """Return the text that `scaling --help` prints: an example and a summary of each command."""
    lines = [
        f"  scaling {name} {command.example}\n      {command.summary}" for name, command in COMMANDS.items()
    ]
    sizes = "with problem size, with AD mode, and with the number of accelerators"
    question = f"How does the cost of a Jacobian scale, {sizes}?"
    return "\n".join([question, "", *lines, "", "`scaling COMMAND --help` describes each command."])


def parse_arguments(name: str, words: list[str]) -> argparse.Namespace:
    """Return the parsed arguments of the command `name`. Raise `Refusal` if an argument is invalid."""
    command = COMMANDS[name]
    parser = Parser(prog=f"scaling {name}", description=command.summary)
    for names, options in command.arguments:
        parser.add_argument(*names, **options)
    return parser.parse_intermixed_args(words)  # such as: merge A --output C B

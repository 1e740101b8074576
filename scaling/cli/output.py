"""Lines of output, which are neither wrapped nor taken for markup."""

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print plain text, line by line."""
    for line in lines:
        console.print(escape(line), soft_wrap=True, highlight=False)

"""Print plain lines of text on a rich console, without wrapping or markup."""

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print each line as plain text, without wrapping or markup."""
    for line in lines:
        console.print(escape(line), soft_wrap=True, highlight=False)

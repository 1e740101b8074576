"""Paths of the repository's folders."""

from pathlib import Path

TOP = Path(__file__).parents[2]
CONF = TOP / "conf"
PACKAGE = TOP / "scaling"

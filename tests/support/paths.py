"""The folders of the repository."""

from pathlib import Path

TOP = Path(__file__).parents[2]
CONF = TOP / "conf"
PACKAGE = TOP / "scaling"

"""Wording: what figures and tables alike say of a case."""

from scaling.case import Case
from scaling.words import counted


def place(case: Case, held: str, honest: bool) -> str:
    """What is the same for all of a panel, in words."""
    how = [held, counted(case.devices, "device"), case.api]
    how += [] if case.api == "jit" else [f"{case.split} split"]
    how += [] if honest else ["oversubscribed"]
    return ", ".join(word for word in how if word)

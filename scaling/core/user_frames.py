"""The frames of a traceback that are the user's own: not of this package, of an installed one, or of the standard library."""

import sysconfig
import traceback
from pathlib import Path

MARK = "| "  # how each line of a traceback begins in the log of a worker
_OURS = str(Path(__file__).resolve().parents[1])
_STANDARD = sysconfig.get_path("stdlib")
_INSTALLED = ("site-packages", "dist-packages")


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of the user's own code in which an exception was raised, the innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    return [
        frame
        for frame in frames
        if not frame.filename.startswith(("<", _OURS)) and not _is_library(frame.filename)
    ]


def place(error: BaseException) -> str:
    """Return the innermost frame of the user as `file.py:line`, without folders; nothing if there is none."""
    frames = user_frames(error)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def describe(error: BaseException) -> str:
    """Return the traceback of an exception, reduced to the user's frames if there are any, each line with MARK."""
    frames = user_frames(error) or traceback.extract_tb(error.__traceback__)
    text = "".join([*traceback.format_list(frames), *traceback.format_exception_only(error)])
    return "\n".join(MARK + line for line in text.splitlines())


def _is_library(file: str) -> bool:
    return any(f"/{name}/" in file for name in _INSTALLED) or file.startswith(f"{_STANDARD}/")

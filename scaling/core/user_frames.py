"""The frames of a traceback that are the user's: not those of this package, of libraries or of Python."""

import sysconfig
import traceback
from pathlib import Path

MARK = "| "  # how each line of a traceback begins in the log of a worker
_OURS = str(Path(__file__).resolve().parents[1])
_STANDARD = sysconfig.get_path("stdlib")
_INSTALLED = ("/site-packages/", "/dist-packages/")


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of the user's code in which an exception was raised, the innermost last."""
    libraries = ("<", _OURS, f"{_STANDARD}/")
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(libraries) and not any(each in frame.filename for each in _INSTALLED)
    ]


def place(error: BaseException) -> str:
    """Return the innermost frame of the user as `file.py:line`, without folders; "" if there is none."""
    frames = user_frames(error)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def describe(error: BaseException) -> str:
    """Return the traceback of an exception, only the user's frames if there are any, each line with MARK."""
    frames = user_frames(error) or traceback.extract_tb(error.__traceback__)
    text = "".join([*traceback.format_list(frames), *traceback.format_exception_only(error)])
    return "\n".join(MARK + line for line in text.splitlines())

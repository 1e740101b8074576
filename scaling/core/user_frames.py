"""The frames of a traceback in the user's code: not in this package, in a library or in Python itself."""

import sysconfig
import traceback
from pathlib import Path

MARK = "| "  # the start of each line of a traceback in the log of a worker
_NOT_OF_USER = ("<", str(Path(__file__).resolve().parents[1]), f"{sysconfig.get_path('stdlib')}/")
_LIBRARIES = ("/site-packages/", "/dist-packages/")


def _user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of the user's code in which an exception was raised, the innermost last."""
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_NOT_OF_USER)
        and not any(name in frame.filename for name in _LIBRARIES)
    ]


def innermost_location(error: BaseException) -> str:
    """Return the innermost user frame as `file.py:line`, without folders; "" if there is none."""
    frames = _user_frames(error)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def format_traceback(error: BaseException) -> str:
    """Return the traceback of an exception, with user frames only if there are any; MARK starts each line."""
    frames = _user_frames(error) or traceback.extract_tb(error.__traceback__)
    text = "".join([*traceback.format_list(frames), *traceback.format_exception_only(error)])
    return "\n".join(MARK + line for line in text.splitlines())

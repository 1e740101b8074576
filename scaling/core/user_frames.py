"""Extract the frames of a traceback that are in the user's code, outside of this package and of libraries."""

import sysconfig
import traceback
from pathlib import Path

MARK = "| "  # the start of each line of a traceback in the log of a worker
_NOT_OF_USER = ("<", str(Path(__file__).resolve().parents[1]), f"{sysconfig.get_path('stdlib')}/")
_LIBRARIES = ("/site-packages/", "/dist-packages/")


def _user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_NOT_OF_USER)
        and not any(name in frame.filename for name in _LIBRARIES)
    ]


def innermost_location(error: BaseException) -> str:
    """Return the innermost line of user code in a traceback, such as 'model.py:12', or "" without one."""
    frames = _user_frames(error)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def format_traceback(error: BaseException) -> str:
    """Return the traceback of an error as text with the prefix "| " on each line.

    It contains only the frames of user code, or all frames if none is in user code.
    """
    frames = _user_frames(error) or traceback.extract_tb(error.__traceback__)
    text = "".join([*traceback.format_list(frames), *traceback.format_exception_only(error)])
    return "\n".join(MARK + line for line in text.splitlines())

"""Format numbers, durations, bytes, counts and tracebacks as text; find the last line of an output."""

import math
import re
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

from scaling.core.environment import scrub

TRACEBACK_MARK = "| "  # the start of each line of a traceback in the log of a worker
_INTERNAL_PREFIXES = ("<", str(Path(__file__).resolve().parents[1]), f"{sysconfig.get_path('stdlib')}/")
_LIBRARY_FOLDERS = ("/site-packages/", "/dist-packages/")
_XLA_LOG_PREFIX = re.compile(r"[IWEF]\d{4} [\d:.]+ +\d+ \S+:\d+\] ")  # level, date, time, thread, line


def format_number(value: float) -> str:
    """Return a number as text such as '0.15', '12.3', '1,054' or '1.2e+06'."""
    if value == 0 or not 0.1 <= abs(value) < 1e6:
        return f"{value:.3g}"
    exponent = math.floor(math.log10(abs(float(f"{value:.3g}"))))
    return f"{value:,.{max(0, min(2, 2 - exponent))}f}"


def format_duration(seconds: float, low: float | None = None, high: float | None = None) -> str:
    """Return a time in seconds as text such as '12.3 µs', or '12.3 µs (12.1 to 12.6)' with an interval."""
    units = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
    unit, size = next(((unit, size) for unit, size in units if seconds >= 0.9995 * size), units[-1])
    scaled = (low, high) if low is None or high is None else (low / size, high / size)
    return f"{format_number(seconds / size)} {unit}{format_interval(*scaled)}"


def format_bytes(value: float) -> str:
    """Format a number of bytes in a suitable decimal unit, such as '3.20 GB' or '512 B'."""
    units = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    unit, size = next(((unit, size) for unit, size in units if value >= 0.9995 * size), ("B", 1))
    return f"{format_number(value / size)} {unit}"


def format_interval(low: float | None, high: float | None) -> str:
    """Return an interval as text such as " (1.7 to 1.8)", or "" if a limit is None."""
    return "" if low is None or high is None else f" ({format_number(low)} to {format_number(high)})"


def format_wait(seconds: float) -> str:
    """Format a waiting time in seconds, such as '45 s', '3 min' or '2 h 05 min'."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


def format_count(count: int, noun: str) -> str:
    """Format a count with its noun, such as '1 case' or '1,000 cases'."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def list_first(names: Sequence[str], count: int, separator: str = ", ") -> str:
    """Return text such as 'a, b and 3 more' with the first `count` names and the number of other names."""
    remaining = len(names) - count
    return separator.join(names[:count]) + (f" and {remaining} more" if remaining > 0 else "")


def format_value(value: object) -> str:
    """Return a Python value in the notation of YAML, such as null, true, 'text' or [1, null]."""
    pattern = r"('[^']*'|\"[^\"]*\")|\b(?:None|True|False)\b"  # group 1: a text in quotes, which is kept
    return re.sub(pattern, lambda match: match[1] or match[0].lower().replace("none", "null"), repr(value))


def last_line(text: str, otherwise: str = "no output") -> str:
    """Return the last line of `text` without log prefix and secrets, or `otherwise` if there is none."""
    lines = text.strip().splitlines()
    return scrub(_XLA_LOG_PREFIX.sub("", lines[-1].strip())) if lines else otherwise


def _user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_INTERNAL_PREFIXES)
        and not any(name in frame.filename for name in _LIBRARY_FOLDERS)
    ]


def format_location(error: BaseException) -> str:
    """Return the location of the last user code in a traceback, such as ' (model.py:12)', or "" if none."""
    frames = _user_frames(error)
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def format_traceback(error: BaseException) -> str:
    """Return a traceback as text with "| " before each line. If it contains user code, omit library code."""
    frames = _user_frames(error) or traceback.extract_tb(error.__traceback__)
    text = "".join([*traceback.format_list(frames), *traceback.format_exception_only(error)])
    return "\n".join(TRACEBACK_MARK + line for line in text.splitlines())

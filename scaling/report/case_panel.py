"""Detail panels of the HTML page, one per measured case: plot of time samples, compile times and memory."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from scaling.core.formatting import count_of, format_bytes, format_duration
from scaling.core.record import STAGES, Record
from scaling.report.figures import marks
from scaling.report.figures.theme import BLUE, VERMILION

MOST_SAMPLES = 40_000  # per page; if there are more, only every n-th sample is plotted
_MEMORY = ("argument_bytes", "output_bytes", "temp_bytes", "peak_bytes")
_SPARSITY = ("detect_seconds", "color_seconds")


def case_panels(groups: Iterable[tuple[str, Sequence[tuple[str, Record]]]]) -> dict[str, Any]:
    """Return a JSON-compatible dict from the HTML anchor of each measured case to its detail panel.

    Args:
        groups: For each case, its HTML anchor and the (process name, record) pairs of its processes.
    """
    cases = list(groups)
    total = sum(len(record.seconds) for _, records in cases for _, record in records)
    step = 1 + total // MOST_SAMPLES
    return {anchor: _make_panel(records, step) for anchor, records in cases if records}


def _make_panel(records: Sequence[tuple[str, Record]], step: int) -> dict[str, Any]:
    """Return the detail panel of one case as a JSON-compatible dict.

    Args:
        records: The (process name, record) pair of each process.
        step: The interval between plotted samples. With 2, every second sample is plotted.

    Returns:
        A dict with these entries:
        facts: A list of texts, such as 'compile 1.20 s to 1.40 s'.
        unit: The unit of the samples in seconds.
        samples: For each process, a list of three items: the process name, the samples rounded to integer
            multiples of `unit`, and the indices of the disturbed samples.
    """
    ordered = sorted(records, key=lambda pair: pair[1].started_at or "")
    unit = 10.0 ** (math.floor(math.log10(min(min(record.seconds) for _, record in ordered))) - 3)
    samples = [
        [name, [round(s / unit) for s in record.seconds[::step]], _disturbed_samples(record, step)]
        for name, record in ordered
    ]
    facts = [f"one of every {step} samples is drawn"] if step > 1 else []
    return {"facts": facts + _list_facts([record for _, record in ordered]), "unit": unit, "samples": samples}


def _list_facts(records: Sequence[Record]) -> list[str]:
    words = [f"stopped by {', '.join(sorted({str(record.stop_reason) for record in records}))}"]
    words += _describe_ranges(records, (*_SPARSITY, *STAGES), "_seconds", "", format_duration)
    words += _describe_ranges(records, _MEMORY, "_bytes", " memory", format_bytes)
    for mark in sorted({mark for record in records for mark in record.marked}):
        marked = sum(len(record.marked.get(mark, ())) for record in records)
        turns = count_of(sum(len(record.turns) for record in records), "turn")
        words.append(f"{mark.replace('_', ' ')} in {marked} of {turns}")
    errors = [(record.error, record.tolerance) for record in records if record.error is not None]
    if errors:
        error, tolerance = max(errors)
        words.append(f"error {error:.2g} of at most {tolerance or 0:.2g}")
    return words


def _describe_ranges(
    records: Sequence[Record], names: Sequence[str], suffix: str, noun: str, write: Callable[[float], str]
) -> list[str]:
    """Return the range of each record field in `names` as text, such as 'compile 1.20 s to 1.40 s'.

    Args:
        records: The records of one case. A field that is None in all of them is omitted.
        suffix: The end of the field names that is omitted in the text, such as '_seconds'.
        noun: The text after the name, such as ' memory'.
        write: The function that formats a value.
    """
    words = []
    for name in names:
        known = [value for record in records if (value := getattr(record, name)) is not None]
        ends = dict.fromkeys(write(end) for end in (min(known), max(known))) if known else ()
        words += [f"{name.removesuffix(suffix)}{noun} {' to '.join(ends)}"] if ends else []
    return words


def _disturbed_samples(record: Record, step: int) -> list[int]:
    """Return the indices of the disturbed samples in `record.seconds[::step]`.

    A turn is a group of consecutive samples. A sample is disturbed if the record marks its turn, for example
    because of load from other processes.
    """
    turns = {turn for numbers in record.marked.values() for turn in numbers}
    of_sample = [turn for turn, count in enumerate(record.turns) for _ in range(count)]
    drawn = of_sample[: len(record.seconds) : step]
    return [at for at, turn in enumerate(drawn) if turn in turns]


def samples_spec() -> marks.Spec:
    """Return a Vega-Lite specification without data that plots the time samples in a detail panel.

    The script page.js inserts the samples of the selected case.
    """
    colour = {"field": "line", "type": "nominal", "scale": {"range": [BLUE, VERMILION]}}
    cross, circle = marks.SHAPES["cross"], marks.SHAPES["circle"]
    shape = {"condition": {"test": "datum.marked", "value": cross}, "value": circle}
    x: marks.Spec = {
        "field": "number",
        "type": "quantitative",
        "title": "sample, process after process (cross: marked)",
    }
    x |= {"axis": {"tickMinStep": 1, "format": "d"}}
    y: marks.Spec = {"field": "seconds", "type": "quantitative", "title": "time", "scale": {"zero": False}}
    y |= {"axis": {"labelExpr": "format(datum.value, '~s') + 's'"}}
    shared = {"x": x | {"scale": {"nice": False}}, "y": y, "color": colour, "detail": {"field": "process"}}
    point = {"shape": shape, "tooltip": {"field": "tip", "type": "nominal"}}
    line = {"type": "line", "strokeWidth": 1, "strokeOpacity": 0.5}
    return {
        "height": 200,
        "data": {"name": "samples"},
        "layer": [
            {"mark": line, "encoding": shared},
            {"mark": {"type": "point", "size": 24}, "encoding": shared | point},
        ],
    }

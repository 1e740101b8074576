"""Time calls in alternation on one core, and compare the times with published ones: a table and a figure.

Results are JSON lines: first the machine, then {"name", "seconds"} for each call, and {"advice", ...} for
each advice. Published times are the cells of a YAML file. The table between two comments of a page in docs/
and the figure of the page are made from both.
"""

import functools
import io
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from examples import pages
from examples.pages import Row
from scaling.analysis.ratios import ratio_interval
from scaling.core import environment
from scaling.core.formatting import format_duration, format_number
from scaling.core.timing import median_interval
from scaling.launcher import cores

BEGIN, END = "<!-- generated: do not edit -->", "<!-- end -->"
HEADER = ("problem", "what", "system", "published", "ours", "ours / published", "source")
ADVICE_HEADER = ("example", "advised without measuring", "fastest (of N measured)", "regret")
LEAST, MOST, SHORTEST = 21, 200, 2e-3  # samples of a call, and seconds of a sample


def restart_on_one_core() -> None:
    """Bind this process to one core and restart it, because XLA and glibc read their variables at start-up."""
    if not os.environ.get("EXAMPLES_BOUND"):
        os.sched_setaffinity(0, cores.usable_cores()[:1])
        variables = environment.variables("cpu") | {"JAX_PLATFORMS": "cpu", "EXAMPLES_BOUND": "1"}
        os.execve(sys.executable, sys.orig_argv, os.environ | variables)


def describe_machine() -> Row:
    """Return the first line of a result file: a dict with the processor, number of cores and JAX version."""
    import jax

    return {"machine": environment.processor(), "cores": len(os.sched_getaffinity(0)), "jax": jax.__version__}


def time_calls(call: Callable[[], Any], count: int) -> float:
    """Return the mean seconds of `count` calls, each of which is waited for (`jax.block_until_ready`)."""
    import jax

    began = time.perf_counter()
    for _ in range(count):
        jax.block_until_ready(call())
    return (time.perf_counter() - began) / count


def sample_in_turns(
    timers: Mapping[str, Callable[[int], float]],
    seconds: float,
    least: int = LEAST,
    most: int = MOST,
    shortest: float = SHORTEST,
) -> dict[str, list[float]]:
    """Return a dict from the name of each timer to its samples in seconds. Timers alternate in random order.

    Args:
        timers: a dict from name to a function from a number of calls to the mean seconds of one call.
        seconds: how long to sample.
        least, most: minimum and maximum number of samples of each timer.
        shortest: minimum duration of a sample, in seconds, of up to 1,000 calls.
    """
    for timer in timers.values():
        timer(2)  # compiles
    counts = {name: min(1000, max(1, round(shortest / timer(3)))) for name, timer in timers.items()}
    samples: dict[str, list[float]] = {name: [] for name in timers}
    order, began = random.Random(0), time.perf_counter()
    for number in range(most):
        if number >= least and time.perf_counter() - began > seconds:
            break
        for name in order.sample(list(timers), len(timers)):
            samples[name].append(timers[name](counts[name]))
    return samples


def sample_calls(calls: Mapping[str, Callable[[], Any]], seconds: float) -> list[Row]:
    """Time calls in alternation. Return one line {"name", "seconds"} of a result file for each call.

    `calls` is a dict from name to function, and `seconds` the time to sample all of them.
    """
    timers = {name: functools.partial(time_calls, call) for name, call in calls.items()}
    samples = sample_in_turns(timers, seconds)
    return [{"name": name, "seconds": values} for name, values in samples.items()]


def advise(name: str, budget: float, *arguments: Any, **options: Any) -> Row:
    """Return the line of a result file with the advice of `scaling.advise` by compiling, and its regret.

    Args:
        name: the name of the example.
        budget: the seconds to measure the candidates.
        arguments, options: the arguments of `scaling.advise`.
    """
    import scaling

    predicted = scaling.advise(*arguments, budget=0, **options)
    return {"advice": name} | measure_regret(predicted, budget, *arguments, **options)


def measure_regret(predicted: Any, budget: float, *arguments: Any, **options: Any) -> Row:
    """Return a dict with the method of an advice by compiling, the fastest one, and the regret.

    The regret is (ratio, low, high) of the time of the advised method over that of the fastest measured
    candidate, minus one, or None if the advised method was not measured. "time" is its median in seconds.
    """
    import scaling

    measured = scaling.advise(*arguments, budget=budget, **options)
    samples = {measured.describe(record.case): record.seconds for record in measured.records}
    advised, fastest = predicted.describe(predicted.best.case), measured.describe(measured.best.case)
    ratio = ratio_interval(samples[advised], samples[fastest]) if samples.get(advised) else None
    if advised == fastest:
        ratio = (1.0, 1.0, 1.0)
    return {
        "advised": advised,
        "fastest": fastest,
        "measured": sum(bool(seconds) for seconds in samples.values()),
        "time": statistics.median(samples[advised]) if samples.get(advised) else None,
        "regret": ratio and [round(value - 1, 4) for value in ratio],
    }


def write_lines(path: Path, rows: Iterable[Row]) -> None:
    """Write the lines of a result file as JSON, with the samples rounded to five digits."""
    rounded = (
        row | {"seconds": [float(f"{value:.5g}") for value in row["seconds"]]} if "seconds" in row else row
        for row in rows
    )
    pages.write_lines(path, rounded)


def compare(cells: Sequence[Row], lines: Sequence[Row]) -> list[Row]:
    """Return the published cells with the keys "published" and "ours", our (median, low, high) or None.

    A cell with the key "over" is a ratio: its "seconds" over its "over". Ours is then the ratio of the times
    of the calls "call" and "call_over". Any other cell is a time in seconds. `lines` are a result file.
    """
    samples = {line["name"]: line["seconds"] for line in lines if "name" in line}
    rows = []
    for cell in cells:
        published, ours = cell["seconds"] / cell.get("over", 1.0), None
        if cell.get("call") in samples:
            seconds = samples[cell["call"]]
            interval = median_interval(seconds)
            ours = interval and (statistics.median(seconds), *interval)
            if "over" in cell:
                ours = ratio_interval(seconds, samples[cell["call_over"]])
        rows.append(cell | {"published": published, "ours": ours})
    return rows


def load_cells(path: Path) -> tuple[list[Row], list[Row]]:
    """Return (published cells, groups of cells with the same source) of a YAML file.

    The fields of a group, such as its source, apply to each of its cells.
    """
    groups = yaml.safe_load(path.read_text())
    cells = [
        {key: value for key, value in group.items() if key != "cells"} | {"reference": number} | cell
        for number, group in enumerate(groups, 1)
        for cell in group["cells"]
    ]
    return cells, groups


def make_table(cells_path: Path, lines: Sequence[Row]) -> str:
    """Return Markdown text: tables of the published times with ours and of the advice, and the sources."""
    cells, groups = load_cells(cells_path)
    machine = lines[0]
    text = [
        f"Ours: {machine['cores']} core of an {machine['machine']}, JAX {machine['jax']}, float32 unless stated, medians "
        "of alternating calls in one process, with 95 % intervals.",
        "",
    ]
    table = []
    for row in compare(cells, lines):
        unit = f"{{}} times {row['base']}" if "over" in row else "{}"
        show = format_number if "over" in row else format_duration
        published, ours, over = unit.format(show(row["published"])), row.get("why", "not measured"), ""
        if row["ours"]:
            middle, low, high = row["ours"]
            if "over" in row:
                ours = pages.format_ratio(middle, low, high)
            else:
                dtype = ", float64" if row["call"].endswith("float64") else ""
                ours = format_duration(middle, low, high) + dtype
            over = pages.format_ratio(*(value / row["published"] for value in (middle, low, high)))
        reference = f"[{row['reference']}]"
        table.append((row["problem"], row["what"], row["system"], published, ours, over, reference))
    text += [pages.make_table(HEADER, table), "", "Sources:", ""]
    text += [
        f"{number}. {group['source']} Machine: {group['machine']}." for number, group in enumerate(groups, 1)
    ]
    regret = (
        "The regret of [advice](advise.md) is the time of the method that it chose from the compiled programs, without "
        "measuring, over that of the fastest one, minus one:"
    )
    return "\n".join([*text, "", regret, "", make_advice_table(lines)])


def make_advice_table(lines: Sequence[Row]) -> str:
    """Return a Markdown table with the advised and the fastest method of each example, and the regret."""
    table = []
    for line in lines:
        if "advice" in line:
            percent = [f"{100 * value:.1f}" for value in line["regret"] or ()]
            regret = "{} % ({} to {})".format(*percent) if percent else "advised method not measured"
            if line["advised"] == line["fastest"]:
                regret = "0 %" if line["measured"] > 1 else "no other was measured"
            fastest = f"{line['fastest']} (of {line['measured']})"
            table.append((line["advice"], line["advised"], fastest, regret))
    return pages.make_table(ADVICE_HEADER, table)


def draw(path: Path, rows: Sequence[Row], title: str, axis: str) -> None:
    """Draw a PNG figure with one row per published cell that has our value: both values on a log scale.

    `rows` are those of `compare`, and `axis` is the title of the horizontal axis.
    """
    import altair
    import vl_convert
    from PIL import Image

    from scaling.report.figures.marks import BLUE, CONFIG, GROUND, VERMILION

    scale = 1.0 if any("over" in row for row in rows) else 1e3
    labels, values = [], []
    for row in rows:
        if row["ours"]:
            labels.append(f"{row['problem']}, {row['what']}, {row['system']} [{row['reference']}]")
            middle, low, high = (scale * value for value in row["ours"])
            values.append({"cell": labels[-1], "who": "published", "value": scale * row["published"]})
            values.append({"cell": labels[-1], "who": "ours", "value": middle, "low": low, "high": high})
    who = ["published", "ours"]
    base = altair.Chart(altair.Data(values=values)).encode(
        y=altair.Y("cell:N", sort=labels, title=None, axis=altair.Axis(labelLimit=420)),
        color=altair.Color("who:N", scale=altair.Scale(domain=who, range=[VERMILION, BLUE])),
    )
    points = base.mark_point(filled=True, size=55).encode(
        x=altair.X("value:Q", scale=altair.Scale(type="log"), title=axis),
        shape=altair.Shape("who:N", scale=altair.Scale(domain=who, range=["square", "circle"])),
    )
    rules = base.mark_rule(strokeWidth=2).encode(x=altair.X("low:Q", title=axis), x2="high:Q")
    chart = (rules + points).properties(width=380, title=title).configure(**CONFIG | {"background": GROUND})
    picture = Image.open(io.BytesIO(vl_convert.vegalite_to_png(chart.to_dict(), scale=2.0)))
    picture.convert("RGB").quantize(64).save(path, optimize=True)


def publish(name: str, cells_path: Path, title: str, axis: str, more: str = "") -> None:
    """Write the tables of docs/NAME.md and the figure docs/NAME.png from the measured docs/data/NAME.jsonl.

    Args:
        cells_path: the YAML file of the published cells.
        title, axis: the titles of the figure and of its horizontal axis.
        more: Markdown text that precedes the tables.
    """
    lines, page = pages.read_lines(pages.data_path(name)), pages.DOCS / f"{name}.md"
    text = f"\n\n{more}{make_table(cells_path, lines)}\n\n"
    page.write_text(pages.replace_between(page.read_text(), BEGIN, END, text))
    draw(page.with_suffix(".png"), compare(load_cells(cells_path)[0], lines), title, axis)

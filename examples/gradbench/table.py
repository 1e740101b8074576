"""Write the tables of docs/gradbench.md and the figure docs/gradbench.png from measured and published times.

python -m examples.gradbench.table [DATA] [PAGE]     by default docs/data/gradbench.jsonl docs/gradbench.md
"""

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from examples.gradbench.problems import CPP, CPP_FAST, CPP_FUNCTION, FUNCTION
from examples.pages import Row, format_ratio, make_table, read_lines, replace_between
from scaling.analysis.ratios import ratio_interval
from scaling.core.formatting import format_duration, format_number

PUBLISHED = Path(__file__).parent / "published.yaml"
TITLES = {"gmm": "GMM", "bundle_adjustment": "BA", "lstm": "LSTM", "hand_tracking": "HT"}
OURS = "JAX here"


def read_published() -> dict[str, Any]:
    """Return the published times ("cells") and their "sources" from published.yaml as a dict."""
    return yaml.safe_load(PUBLISHED.read_text())


def ratio(line: Row, top: str, bottom: str) -> tuple[float, float, float]:
    """Return (ratio, low, high) of the median times of two programs, with the 95 % interval.

    `line` is the measurement of a problem, and `top` and `bottom` are the names of programs in it.
    """
    interval = ratio_interval(line["seconds"][top], line["seconds"][bottom])
    if interval is None:
        raise ValueError(f"{line['label']}: too few samples of {top} and {bottom} for an interval")
    return interval


def best_of_jax(line: Row) -> str:
    """Return the name of the AD mode of JAX with the smallest median time in a measurement."""
    return min(line["candidates"], key=lambda name: statistics.median(line["seconds"][name]))


def measured_table(lines: Sequence[Row]) -> str:
    """Return a Markdown table of our times: JAX in its fastest mode, C++, and their ratios."""
    rows = []
    for line in lines:
        name = best_of_jax(line)
        times = [format_duration(statistics.median(line["seconds"][program])) for program in (name, CPP)]
        pairs = [(name, CPP), (name, CPP_FAST), (name, FUNCTION), (CPP, CPP_FUNCTION)]
        texts = [format_ratio(*ratio(line, *pair)) for pair in pairs]
        rows.append([TITLES[line["problem"]], line["label"], name, *times, *texts])
    header = [
        "problem", "size", "mode of JAX", "JAX", "C++", "JAX / C++", "JAX / C++ -ffast-math",
        "JAX / its function", "C++ / its function",
    ]  # fmt: skip
    ratios = [(TITLES[line["problem"]], *ratio(line, best_of_jax(line), CPP)) for line in lines]
    faster = [each for each in ratios if each[1] < 1]
    unsure = sum(high >= 1 for *_, high in faster)
    first = lines[0]
    machine = (
        f"{first['machine']}, one core, float64, JAX {first['jax']}, {first['compiler']}, {first['date']}"
    )
    ranges = []
    for title in dict.fromkeys(title for title, *_ in ratios):
        middles = [middle for each, middle, *_ in ratios if each == title]
        ranges.append(f"{title} {format_number(min(middles))} to {format_number(max(middles))}")
    count = (
        f"JAX is faster than C++ in {len(faster)} of {len(lines)} cells; in {unsure} of these the interval contains 1. "
        f"The time of JAX over that of C++ is: {', '.join(ranges)}."
    )
    return f"{make_table(header, rows)}\n\n{count} ({machine}.)"


def published_table(lines: Sequence[Row], published: dict[str, Any]) -> str:
    """Return a Markdown table of the published times, with a row for each size and source.

    A cell has the time of a system and, where published, that time over the one of the function.
    """
    systems = list(dict.fromkeys(cell["tool"] for cell in published["cells"]))
    rows = []
    for line in lines:
        ours = format_number(ratio(line, best_of_jax(line), FUNCTION)[0])
        for source in published["sources"]:
            problem = {"problem": line["problem"], "label": line["label"], "source": source}
            cells = {c["tool"]: _describe_cell(c) for c in published["cells"] if problem.items() <= c.items()}
            if cells:
                texts = [cells.get(system, "") for system in systems]
                rows.append([_describe_size(line), source, ours, *texts])
    sources = [
        f"- `{name}`: {source['title']}, {source['files']} ({source['url']}). Machine: {source['machine']}."
        f" {' '.join(source['note'].split())}"
        for name, source in published["sources"].items()
    ]
    return f"{make_table(['size', 'source', 'JAX here / its function', *systems], rows)}\n\n" + "\n".join(
        sources
    )


def _describe_cell(cell: dict[str, Any]) -> str:
    """Return the time of a published cell, and in brackets its ratio to that of the function if known."""
    over = cell.get("over_function")
    return format_duration(cell["seconds"]) + (f" ({format_number(over)})" if over else "")


def figure_rows(lines: Sequence[Row], published: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one dict per marker of the figure: a time over that of C++ by hand from the same source."""
    rows = []
    for line in lines:
        value, low, high = ratio(line, best_of_jax(line), CPP)
        rows.append({"tool": OURS, "value": value, "low": low, "high": high, "size": _describe_size(line)})
    by_hand = {
        (cell["source"], cell["problem"], cell["label"]): cell["seconds"]
        for cell in published["cells"]
        if cell["tool"] == "C++ by hand"
    }
    measured = {(line["problem"], line["label"]) for line in lines}
    for cell in published["cells"]:
        reference = by_hand.get((cell["source"], cell["problem"], cell["label"]))
        if reference and cell["tool"] != "C++ by hand" and (cell["problem"], cell["label"]) in measured:
            tool = f"{cell['tool']} ({cell['source']})"
            rows.append({"tool": tool, "value": cell["seconds"] / reference, "size": _describe_size(cell)})
    return rows


def _describe_size(line: dict[str, Any]) -> str:
    """Return the problem and the size of a measurement or published cell, such as "GMM d=2, K=5, N=1,000"."""
    return f"{TITLES[line['problem']]} {line['label']}"


def draw_figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the figure as a PNG file: a row for each size, with the ratios of all systems."""
    import altair
    import vl_convert

    sizes = list(dict.fromkeys(row["size"] for row in rows))
    systems = list(dict.fromkeys(row["tool"] for row in rows if row["tool"] != OURS))
    data = altair.Data(values=list(rows))
    y = altair.Y("size:N", sort=sizes, title=None, axis=altair.Axis(labelLimit=300))
    x = altair.X(
        "value:Q",
        scale=altair.Scale(type="log"),
        title="time of the derivative over C++ by hand of the same machine and source",
    )
    scale = altair.Scale(domain=systems)  # the same for both, so that they share one legend
    color, shape = (
        altair.Color("tool:N", scale=scale, title=None),
        altair.Shape("tool:N", scale=scale, title=None),
    )
    is_ours = altair.datum.tool == OURS
    base = altair.Chart(data)
    layers = [
        altair.Chart(altair.Data(values=[{"value": 2}])).mark_rule(strokeDash=[4, 3], color="#6e6e6e").encode(x=x),
        base.transform_filter(~is_ours).mark_point(size=45).encode(x=x, y=y, color=color, shape=shape),
        base.transform_filter(is_ours).mark_rule(color="black").encode(x="low:Q", x2="high:Q", y=y),
        base.transform_filter(is_ours).mark_point(filled=True, size=70, color="black").encode(x=x, y=y),
    ]  # fmt: skip
    title = altair.Title(
        "Derivatives in JAX (black) and in other systems",
        subtitle="Each system over the hand-written C++ of its own source. Dashed: twice its time.",
    )
    chart = altair.layer(*layers).properties(width=520, height=18 * len(sizes), title=title)
    path.write_bytes(vl_convert.vegalite_to_png(chart.to_json(), scale=2.0))


def write_page(data: Path, page: Path) -> None:
    """Write the tables into the Markdown file `page`, and the figure as a PNG file of the same name."""
    lines, published, text = read_lines(data), read_published(), page.read_text()
    parts = {
        "measured": measured_table(lines),
        "published": published_table(lines, published),
    }
    for part, table in parts.items():
        markers = (f"<!-- {part}: {which} -->" for which in ("begin", "end"))
        text = replace_between(text, *markers, f"\n{table}\n")
    page.write_text(text)
    draw_figure(figure_rows(lines, published), page.with_suffix(".png"))


if __name__ == "__main__":
    write_page(*map(Path, [*sys.argv[1:], "docs/data/gradbench.jsonl", "docs/gradbench.md"][:2]))

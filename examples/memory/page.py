"""Write the table of docs/memory.md, between its markers, and docs/memory.png from docs/data/memory.jsonl.

python -m examples.memory.page
"""

import altair
import vl_convert

from examples import pages
from scaling.core.formatting import format_bytes, format_duration, format_number, format_wait

LIMIT = 24e9  # bytes
MARKERS = "<!-- table -->", "<!-- end of table -->"
HEADER = (
    "case", "thread", "asked for", "needed there", "machine", "needs as asked",
    "advice on it: needs, predicted time; time here, regret over the best candidate", "solved by", "needs", "time",
    "regret over the best of the study", "checked",
)  # fmt: skip


def bytes_of(run):
    """Return the bytes of the arguments, temporaries and result of a measured case."""
    return sum(run[f"{part}_bytes"] for part in ("argument", "temp", "output"))


def find_solution(row):
    """Return the measured case to advise: one with colors or a reduction, then mode=auto, then the fastest.

    Return None if no case of the row succeeded.
    """
    runs = [run for run in row["runs"] if run["status"] == "ok"]
    is_dense = lambda run: run["seeds"] == "identity" and "reduce" not in run  # noqa: E731
    return min(runs, key=lambda run: (is_dense(run), run["mode"] != "auto", run["median"]), default=None)


def regret(row):
    """Return the time of the advised case over that of the fastest equivalent case, minus one, or None.

    Equivalent cases have the same seeds and reduction. Return None if there is only one such case.
    """
    solution = find_solution(row)
    if solution is None or solution["mode"] != "auto":
        return None
    kind = lambda run: (run["seeds"], run.get("reduce"))  # noqa: E731
    same = [r["median"] for r in row["runs"] if r["status"] == "ok" and kind(r) == kind(solution)]
    return solution["median"] / min(same) - 1 if len(same) > 1 else None


def describe(run):
    """Return the method of a measured case as text, such as "reduce=vector, jacfwd"."""
    chosen = run.get("chosen", {}).get
    seeds, block = chosen("chunk") or run.get("chunk"), chosen("block") or run.get("case.block")
    parts = {
        f"reduce={run.get('reduce')}": run.get("reduce"), "seeds=colored": run["seeds"] == "colored",
        chosen("mode") or run["mode"]: True, f"chunk={seeds:g}" if seeds else "": seeds,
        f"block={block:g}" if block else "": block,
    }  # fmt: skip
    return ", ".join(text for text, applies in parts.items() if applies)


def describe_check(run):
    """Return the checked fraction of the entries, the error and the tolerance of a measured case as text."""
    share = min(run["checked.entries"], run["checked.points"])
    entries = "all entries" if share == 1 else f"{100 * run['checked.entries']:.2g} % of the entries"
    return f"{entries}, error {run['error']:.1g} of {run['tolerance']:.1g}"


def describe_call(row):
    """Return the memory of the reported call as text, and with XLA's defaults if it is less than half."""
    if "bytes" not in row["plain"]:
        return row["plain"]["error"]
    needed, default = row["plain"]["bytes"], row["plain_default"].get("bytes")
    less = default is not None and 2 * default < needed
    return format_bytes(needed) + (f" ({format_bytes(default)})" if less else "")


def write_row(row):
    """Return the texts of one row of the table in docs/memory.md."""
    advice, run = row["advice"], find_solution(row)
    link = f"[{row['thread']}]({row['url']})"
    cells = [f"`{row['case']}`", link, row["asked"], row["needed"], row["machine"], describe_call(row)]
    if "method" in advice:
        seconds = advice["predicted_seconds"]
        predicted = format_wait(seconds) if seconds > 90 else format_duration(seconds)
        loss = advice.get("regret")  # None if it was not measured
        here = format_duration(advice["time"]) if loss else "not run"
        here += f", {format_number(100 * loss[0])} %" if loss and advice["measured"] > 1 else ""
        cells.append(f"{advice['method']}: {format_bytes(advice['bytes'])}, {predicted}; {here}")
    else:
        cells.append(advice["error"].rpartition("advised: ")[2])
    if run is None:
        return [*cells, "none", "", "", "", ""]
    fraction = regret(row)
    time = format_duration(run["median"], run.get("low"), run.get("high"))
    percent = "" if fraction is None else f"{format_number(100 * fraction)} %"
    return [*cells, describe(run), format_bytes(bytes_of(run)), time, percent, describe_check(run)]


def make_text(rows):
    """Return the table of docs/memory.md, and a sentence with our processors and versions of JAX."""
    machines = dict.fromkeys(f"{row['processor']} (JAX {row['jax']})" for row in rows)
    return f"{pages.make_table(HEADER, map(write_row, rows))}\n\nOurs: one core of {', '.join(machines)}."


def draw(rows):
    """Return a bar chart of the bytes of each reported call and of its solution, with a line at 24 GB."""
    names = ("as asked", "solved")
    bars = []
    for row in rows:
        run = find_solution(row)
        bytes_by_name = zip(names, (row["plain"].get("bytes"), run and bytes_of(run)), strict=True)
        bars += [{"case": row["case"], "name": name, "bytes": n} for name, n in bytes_by_name if n]
    order, scale = [row["case"] for row in rows], altair.Scale(type="log", domainMin=1e4)
    axis = altair.Axis(format="~s", title="bytes", values=[10.0**k for k in range(4, 19)])
    colours = altair.Scale(domain=names, range=["#d55e00", "#0072b2"])
    chart = altair.Chart(altair.Data(values=bars)).mark_bar().encode(
        x=altair.X("bytes:Q", scale=scale, axis=axis), y=altair.Y("case:N", sort=order, title=None),
        yOffset=altair.YOffset("name:N", sort=names), x2=altair.datum(1e4),
        color=altair.Color("name:N", scale=colours, legend=altair.Legend(title=None, orient="bottom")),
    )  # fmt: skip
    line = altair.Chart(altair.Data(values=[{"bytes": LIMIT, "name": "24 GB"}]))
    rule, text = line.mark_rule(strokeDash=[4, 3]), line.mark_text(align="left", dx=4, y=-6)
    layers = [chart, rule.encode(x="bytes:Q"), text.encode(x="bytes:Q", text="name:N")]
    return altair.layer(*layers).properties(width=520, height=26 * len(rows))


def main():
    rows = pages.read_lines(pages.data_path("memory"))
    page = pages.DOCS / "memory.md"
    page.write_text(pages.replace_between(page.read_text(), *MARKERS, f"\n{make_text(rows)}\n"))
    page.with_suffix(".png").write_bytes(vl_convert.vegalite_to_png(draw(rows).to_json(), scale=2.0))


if __name__ == "__main__":
    main()

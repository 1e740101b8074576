"""Measure the studies `laplacian` and `biharmonic` and the memory of programs, and write docs/laplacian.md.

    python -m examples.measure_laplacian         # measures and writes docs/data/laplacian.jsonl
    python -m examples.measure_laplacian --draw  # writes the tables of docs/laplacian.md, and its figure

Further arguments of the first command go to `scaling run`, such as `points=8 sizes.wide=16 sizes.narrow=12`.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from scaling.core import environment
from scaling.core.derivative import describe_derivative

os.environ |= environment.variables("cpu") | {"JAX_PLATFORMS": "cpu"}
import jax

import scaling
from examples import pages
from scaling.core import layout, workload
from scaling.core.case import Case
from scaling.core.formatting import format_bytes, format_duration
from scaling.results import store
from scaling.study import case_rules

MODES = {"fwd_over_rev": "nested", "jet": "Taylor", "forward_laplacian": "collapsed", "analytic": "by hand"}
COMPARED = tuple(MODES)[:3]
BATCHES = (1, 228, 455, 2048)  # whose programs are compiled to read their memory
STUDIES = {"laplacian": "time", "biharmonic": "time of the biharmonic"}  # study -> kind of its rows
FIELDS = (
    "variant", "mode", "points", "chunk", "devices", "split", "api", "median", "low", "high", "temp_bytes", "output_bytes",
    "status", "text", "error",
)  # fmt: skip
MACHINE = ("environment.device_kind", "environment.versions", "started_at")


def measure(arguments: list[str]) -> list[dict]:
    """Run the studies of `STUDIES`. Return one row, a dict of JSON values, per record.

    `arguments` are further arguments of `scaling run`.
    """
    command = [str(Path(sys.executable).parent / "scaling"), "run", "--config-dir", "examples/conf"]
    measured = []
    for study, kind in STUDIES.items():
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([*command, f"study={study}", f"results={folder}/{study}", *arguments], check=True)
            frame = scaling.load(f"{folder}/{study}")
            chosen = {record.key: record.chosen for record in store.load(Path(folder, study)).records}
        frame = frame[frame["workload"] == f"examples.{study}"]
        rows = json.loads(frame[[*FIELDS, *MACHINE]].to_json(orient="records", date_format="iso"))
        keyed = zip(frame["key"], rows, strict=True)
        measured += [{"kind": kind, "chosen": chosen[key]} | row for key, row in keyed]
    return measured


def program_bytes(mode: str, points: int, sizes: dict[str, int], by_weights: bool) -> int | None:
    """Return the bytes of temporaries and result of a program, or None if JAX cannot differentiate it.

    The program computes the Laplacians of the network at all points, or with `by_weights` the gradient of
    their sum by weights and biases. The program is compiled and not run.
    """
    case = case_rules.complete(Case("examples.laplacian", mode=mode, points=points, sizes=sizes, api="jit"))
    built = workload.build(case)
    program = layout.lay_out(describe_derivative(case, built), jax.devices()[:1])
    function, structs = program.function, list(program.arguments.values())
    if by_weights:
        argnums = [number for number, name in enumerate(program.arguments) if name in built.shared]
        total = lambda *arrays: sum(a.sum() for a in jax.tree.leaves(program.function(*arrays)))  # noqa: E731
        function = jax.jit(jax.grad(total, argnums))
    try:
        used = function.lower(*structs).compile().memory_analysis()
    except NotImplementedError:
        return None
    return used.temp_size_in_bytes + used.output_size_in_bytes


def measure_memory(sizes: dict[str, int], batches: tuple[int, ...] = BATCHES) -> list[dict]:
    """Return one row per batch and AD mode with the memory of the program in bytes, compiled and not run."""
    return [
        {
            "kind": name,
            "mode": mode,
            "points": points,
            "bytes": program_bytes(mode, points, sizes, by_weights),
        }
        for points in batches
        for mode in MODES
        for name, by_weights in (("memory", False), ("memory of the gradient", True))
    ]


def read(name: str) -> list[dict]:
    """Return the rows of the file docs/data/NAME.jsonl, one dict per line."""
    return pages.read_lines(pages.data_path(name))


def slope(rows: list[dict], kind: str, mode: str) -> tuple[float, float, float] | None:
    """Return (increase, low, high) of a time or memory per point between the two largest measured batches.

    Return None if fewer than two batches were measured. `kind` is the field of the rows that names the
    quantity.
    """
    measured = [row for row in rows if is_plain(row, kind, mode) and value(row)]
    if len(measured) < 2:
        return None
    small, large = sorted(measured, key=lambda row: row["points"])[-2:]
    count = large["points"] - small["points"]
    (a, low, high), (b, b_low, b_high) = value(small), value(large)
    return (b - a) / count, (b_low - high) / count, (b_high - low) / count


def is_plain(row: dict, kind: str, mode: str) -> bool:
    """Return whether a row has this kind and mode, all directions at once, and a single device.

    The nested biharmonic is that of the nested Laplacian.
    """
    return (
        (row["kind"], row.get("mode")) == (kind, mode)
        and not row.get("chunk")
        and row.get("api", "jit") == "jit"
        and (row.get("variant") == "nested") == (kind == STUDIES["biharmonic"] and mode == COMPARED[0])
    )


def value(row: dict) -> tuple[float, float, float] | None:
    """Return (value, low, high) of a row in seconds or bytes, or None if the row has no value."""
    if row["kind"] in STUDIES.values():
        return (row["median"], row["low"], row["high"]) if row["median"] else None
    return (row["bytes"],) * 3 if row["bytes"] else None


def ours(rows: list[dict], cell: dict) -> tuple[float, float, float] | None:
    """Return our measured (value, low, high) for a published cell, or None if it was not measured."""
    if cell["points"] == "per datum":
        return slope(rows, cell["quantity"], cell["mode"])
    candidates = (row for row in rows if is_plain(row, cell["quantity"], cell["mode"]))
    return next((value(row) for row in candidates if row["points"] == cell["points"]), None)


def ratio(a: tuple[float, ...] | None, b: tuple[float, ...] | None) -> tuple[float, float, float] | None:
    """Return (a / b, low, high) for two values (middle, low, high), with the widest possible interval."""
    return (a[0] / b[0], a[1] / b[2], a[2] / b[1]) if a and b and b[1] > 0 else None


def compare(rows: list[dict], published: list[dict]) -> list[dict]:
    """Return the published cells, each with our values added.

    The new keys are "ours" (our value), and "ratio" and "our_ratio" (the ratios of the published value and of
    ours to nested differentiation).
    """
    compared = []
    for cell in published:
        problem = {name: cell[name] for name in ("source", "system", "quantity", "points")}
        nested = next(c for c in published if problem.items() <= c.items() and c["mode"] == COMPARED[0])
        our_value = ours(rows, cell)
        ratios = {"ratio": cell["value"] / nested["value"], "our_ratio": ratio(our_value, ours(rows, nested))}
        compared.append(cell | ratios | {"ours": our_value})
    return compared


def format_ratio(interval: tuple[float, float, float] | None) -> str:
    """Return a ratio (middle, low, high) as text: "1.70 (1.65 to 1.81)", or "not measured" for None."""
    if interval is None:
        return "not measured"
    middle, low, high = interval
    return f"{middle:.2f}" if low == high else f"{middle:.2f} ({low:.2f} to {high:.2f})"


def format_value(cell: dict) -> str:
    """Return our measured time or memory of a cell of `compare` as text with a unit."""
    if cell["ours"] is None:
        return "not measured"
    is_time = cell["quantity"] in STUDIES.values()
    return format_duration(cell["ours"][0]) if is_time else format_bytes(cell["ours"][0])


def tables(rows: list[dict], published: list[dict]) -> str:
    """Return the Markdown text of docs/laplacian.md: both tables, the choices of mode=auto, and our machine."""
    timed = [row for row in rows if row["kind"] in STUDIES.values()]
    machines = dict.fromkeys(f"{row[MACHINE[0]]} ({row[MACHINE[1]]})" for row in timed)
    ours = ["", f"Ours: one core for each device of {'; '.join(machines)}."]
    return "\n".join(
        [comparison_table(rows, published), "", times_table(rows), *describe_choices(rows), *ours]
    )


def comparison_table(rows: list[dict], published: list[dict]) -> str:
    """Return a Markdown table of the published and our ratios to nested differentiation, with nested itself."""
    head = ["quantity", "batch", "nested: published", "nested: here"]
    head += [f"{MODES[mode]} / nested: {where}" for mode in COMPARED[1:] for where in ("published", "here")]
    lines: dict[tuple[str, str], list[str]] = {}
    for cell in compare(rows, published):
        what = f"{cell['quantity']}, {cell['system']} ({cell['source']})", str(cell["points"])
        if cell["mode"] == COMPARED[0]:
            lines[what] = [f"{cell['value']:g} {cell['unit']}", format_value(cell), *[""] * 4]
        else:
            column = 2 * COMPARED.index(cell["mode"])
            lines[what][column : column + 2] = f"{cell['ratio']:.2f}", format_ratio(cell["our_ratio"])
    return pages.make_table(head, [[*what, *texts] for what, texts in lines.items()])


def times_table(rows: list[dict]) -> str:
    """Return a Markdown table of our measured times and memories, with ratios to nested differentiation."""
    head = (
        "mode",
        "batch",
        "directions at a time",
        "devices",
        "time",
        "over nested",
        "memory",
        "over nested",
    )
    times = []
    timed = [row for row in rows if row["kind"] == "time" and row["median"]]
    for row in sorted(timed, key=lambda row: (row["points"], row["devices"], row["median"])):
        same = [
            r for r in timed if (r["mode"], r["points"], r["chunk"]) == (COMPARED[0], row["points"], None)
        ]
        nested = sorted(same, key=lambda r: (r["devices"], r["api"] != "jit", r["split"]))
        baseline = next(iter(nested), None)
        over = format_ratio(ratio(value(row), value(baseline))) if baseline else "not measured"
        over = "1" if row is baseline else over
        used, of_nested = (each and each["temp_bytes"] + each["output_bytes"] for each in (row, baseline))
        devices = "1" if row["api"] == "jit" else f"{row['devices']} by {row['split']}"
        settings = f"`{row['mode']}`", str(row["points"]), str(row["chunk"] or "all"), devices
        memory = format_bytes(used), f"{used / of_nested:.2f}" if of_nested else "not measured"
        times.append((*settings, format_duration(row["median"]), over, *memory))
    return pages.make_table(head, times)


def describe_choices(rows: list[dict]) -> list[str]:
    """Return lines of Markdown with the choice of each case with mode=auto, and its time over the fastest."""
    kinds = STUDIES.values()
    times = [row for row in rows if row["kind"] in kinds and row["median"] and row["mode"] != "analytic"]
    lines = []
    automatic = (row for row in times if row["mode"] == "auto")
    for row in sorted(automatic, key=lambda row: (row["kind"] == STUDIES["biharmonic"], row["points"])):
        problem = {name: row.get(name) for name in ("kind", "variant", "points")} | {"api": "jit"}
        rivals = [
            r for r in times if r["mode"] != "auto" and problem == {name: r.get(name) for name in problem}
        ]
        fastest = min(rivals, key=lambda rival: rival["median"], default=None)
        if fastest is not None:
            regret = format_ratio(ratio(value(row), value(fastest)))
            what = ", biharmonic" if row["kind"] == STUDIES["biharmonic"] else ""
            block, chunk = row["chosen"]["block"], fastest["chunk"]
            settings = f", {block} points at a time" if block else ""
            rival = f", {chunk} directions at a time" if chunk else ""
            lines.append(
                f"- At batch {row['points']}{what}, it chose `{row['chosen']['mode']}`{settings}, and took {regret} times "
                f"as long as `{fastest['mode']}`{rival}."
            )
    if lines:
        begin = "`mode: auto` chose a mode by compiling alone. It is compared with the fastest run whose mode was given:"
        lines = ["", begin, "", *lines]
    return lines


def draw(rows: list[dict], published: list[dict], path: Path) -> None:
    """Draw the published ratios to nested differentiation and ours, with intervals, as a PNG file."""
    import altair as alt
    import vl_convert

    points, names = [], []
    for cell in compare(rows, published):
        if cell["mode"] == COMPARED[0]:
            continue
        batch = cell["points"] if cell["points"] == "per datum" else f"batch {cell['points']}"
        names.append(f"{cell['system']}, {cell['quantity']}, {batch}, {MODES[cell['mode']]}")
        points.append({"cell": names[-1], "by": "published", "ratio": cell["ratio"]})
        if cell["our_ratio"]:
            middle, low, high = cell["our_ratio"]
            points.append({"cell": names[-1], "by": "here", "ratio": middle, "low": low, "high": high})
    scale, title = alt.Scale(type="log", domain=[0.1, 10]), "over nested differentiation"
    y = alt.Y("cell:N", sort=names, title=None, axis=alt.Axis(labelLimit=400, grid=True))
    by = ["published", "here"]  # the same domain for both, so that they share one legend
    color = alt.Color("by:N", title=None, scale=alt.Scale(domain=by, range=["#0072b2", "#d55e00"]))
    shape = alt.Shape("by:N", title=None, scale=alt.Scale(domain=by))
    base = alt.Chart(alt.Data(values=points)).encode(y=y, color=color)
    x = alt.X("ratio:Q", scale=scale, title=title)
    marks = base.mark_point(filled=True, size=60).encode(x=x, shape=shape)
    bars = (
        base.transform_filter("isValid(datum.low)")
        .mark_rule()
        .encode(x=alt.X("low:Q", scale=scale, title=title), x2="high:Q")
    )
    chart = (bars + marks).properties(width=420, title="Taylor mode and one forward pass, against nested")
    path.write_bytes(vl_convert.vegalite_to_png(chart.to_json(), scale=2))


def write_page() -> None:
    """Write the tables between the markers of docs/laplacian.md, and its figure."""
    rows, published, page = read("laplacian"), read("laplacian_published"), pages.DOCS / "laplacian.md"
    begin, end = "<!-- begin of the measured tables -->", "<!-- end of the measured tables -->"
    text = f"\n{tables(rows, published)}\n"
    page.write_text(pages.replace_between(page.read_text(), begin, end, text))
    draw(rows, published, page.with_suffix(".png"))


def main(arguments: list[str]) -> None:
    """Measure into docs/data/laplacian.jsonl, or with `--draw` write docs/laplacian.md and its figure."""
    if arguments == ["--draw"]:
        return write_page()
    sizes = {
        name[6:]: int(size)
        for name, _, size in (a.partition("=") for a in arguments)
        if name.startswith("sizes.")
    }
    rows = measure(arguments) + measure_memory(sizes)
    rows.append({"kind": "machine", "processor": environment.processor(), "jax": jax.__version__})
    pages.write_lines(pages.data_path("laplacian"), rows)


if __name__ == "__main__":
    main(sys.argv[1:])

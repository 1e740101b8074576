"""What the figures show of studies made up to have a known shape, and that they are legible, safe and always the same."""

import itertools
import json
import re
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import vl_convert
from altair.vegalite.v6.schema.core import load_schema

from scaling.analysis import baselines, curves, findings, variants
from scaling.analysis.efficiency_breakdown import EfficiencyBreakdown
from scaling.report import figures
from scaling.report.figures import costs, devices, files, marks, memory, sizes, theme
from tests.support import made_up
from tests.support.records import record

COLOUR = re.compile(r'"#[0-9a-f]{6}"')


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Two modes of one workload at three sizes on 1, 2, 4 and 8 devices, with ceilings, as many points and more."""
    draw = np.random.default_rng(0)
    cases = [
        made_up.case_of("rbf", m, s, d) for m in ("jacfwd", "jacrev") for s in (0, 2, 4) for d in (1, 2, 4, 8)
    ]
    cases += [made_up.case_of("linear", "jacfwd", 3, d, weak=True) for d in (1, 2, 4, 8)]
    records = [made_up.record(draw, case, replicate) for case in cases for replicate in range(3)]
    records += [each for devices in (1, 2, 4, 8) for each in made_up.machine(draw, devices)]
    return findings.read(made_up.write(tmp_path_factory.mktemp("figures") / "made", records))


@pytest.fixture(scope="module")
def drawn(found):
    """Every figure that may be: those of what there is to choose beside the mode are of another study."""
    draw = np.random.default_rng(0)
    records = [
        each
        for made in (made_up.settings, made_up.meshes)
        for replicate in range(3)
        for each in made(draw, 8, replicate)
    ]
    laid_out = variants.compare_variants(curves.pool_processes(records), "mesh")
    several = [
        *figures.make_figures(found),
        devices.draw_meshes(laid_out, False),
        memory.draw_fronts(variants.pareto_fronts(records), False),
    ]
    return {
        drawing.name: drawing
        for drawing in sorted(several, key=lambda drawing: figures.NAMES.index(drawing.name))
    }


def texts(drawing):
    """All that stands in a figure: the titles of its panels, and their layers with their rows."""
    return json.dumps([[panel.title, panel.layers] for panel in drawing.panels], ensure_ascii=False)


def rows(drawing, mark=None, panel=None):
    """The rows behind the marks of a kind, of all panels or of one."""
    panels = drawing.panels if panel is None else [drawing.panels[panel]]
    layers = [layer for each in panels for layer in each.layers if mark in (None, layer["mark"]["type"])]
    return [row for layer in layers for row in layer["data"]["values"]]


def titles(drawing):
    """The title of the vertical axis of each panel."""
    return [
        next(title for layer in panel.layers if (title := layer["encoding"].get("y", {}).get("title")))
        for panel in drawing.panels
    ]


def svg(drawing, tmp_path):
    """The file of a figure."""
    files.write_figures([drawing], findings.read(tmp_path), tmp_path, ["svg"])
    return (tmp_path / f"{drawing.name}.svg").read_text()


def test_every_figure_is_drawn_where_its_values_are_there(drawn):
    assert tuple(drawn) == figures.NAMES


@pytest.mark.contract
def test_the_same_values_give_the_same_bytes(found, drawn, tmp_path):
    again = figures.make_figures(found)
    assert files.page_specs(again) == files.page_specs(drawn[drawing.name] for drawing in again)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        files.write_figures(again[:2], found, tmp_path / name, ["svg", "png", "pdf"])
    for path in (tmp_path / "one").iterdir():
        one, two = path.read_bytes(), (tmp_path / "two" / path.name).read_bytes()
        # The library writes the entries of a dictionary of PDF, which have no order, in any order.
        assert len(one) == len(two) if path.suffix == ".pdf" else one == two
        assert b"CreationDate" not in one


def test_a_panel_takes_its_colours_from_the_page_and_a_file_has_its_own(drawn):
    variables = set(re.findall(r"(--x[0-9a-f]{6}):", theme.style_sheet(dark=True)))
    assert variables == set(re.findall(r"(--x[0-9a-f]{6}):", theme.style_sheet(dark=False)))
    page = files.page_specs(drawn.values())
    used = set(re.findall(r"var\((--x[0-9a-f]{6})\)", page))
    assert len(used) >= 8 and used <= variables and not COLOUR.findall(page)
    for drawing in drawn.values():
        spec = json.dumps(files.file_spec(drawing, ""))
        assert "var(" not in spec and files.file_spec(drawing, "")["config"]["background"] == theme.GROUND


def test_a_figure_is_a_specification_without_a_misspelt_word(drawn, found):
    schema = jsonschema.Draft7Validator(load_schema())
    for drawing in drawn.values():
        spec = files.file_spec(drawing, "") | {"datasets": {}}
        assert schema.is_valid(spec), drawing.name


def test_a_file_names_study_machine_date_and_commit(drawn, found, tmp_path):
    files.write_figures([drawn["size"]], found, tmp_path, ["svg"])
    written = (tmp_path / "size.svg").read_text()
    ET.fromstring(written)
    for word in (found.name, "An accelerator", "2026-01-01", "commit cccccccccccc"):
        assert word in written


def test_modes_in_one_layout_differ_in_shape_and_layouts_of_one_mode_too(drawn):
    for several in ({"mode": ("jacfwd", "jacrev")}, {"api": ("shard_map", "pmap")}):
        ((field, values),) = several.items()
        records = [record(d, 8.0 / d, **{field: value}) for d in (1, 2) for value in values]
        strong = devices.draw_scaling("strong", curves.scaling_curves(records), (), False)
        assert len({style.shape for style in strong.legend}) == 2, field


def test_the_library_of_the_page_is_that_of_the_files():
    head = (Path(files.__file__).parents[1] / "vega.min.js").read_text()[:200]
    assert f"Vega {vl_convert.get_vega_version()}," in head, "make it anew: see CONTRIBUTING.md"
    assert f"Vega-Embed {vl_convert.get_vega_embed_version()}," in head


def test_a_mode_has_one_colour_in_all_figures(drawn):
    colours = {}
    for drawing in drawn.values():
        for style in drawing.legend:
            colours.setdefault(style.name.split(" ")[0], set()).add(style.colour)
    assert (
        all(len(colours[mode]) == 1 for mode in ("jacfwd", "jacrev"))
        and colours["jacfwd"] != colours["jacrev"]
    )


def luminance(colour):
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("dark, ground", [(False, "#ffffff"), (True, "#16181c")])
def test_every_line_stands_out_from_its_ground(dark, ground):
    written = dict(re.findall(r"--x(\w{6}): (#\w{6});", theme.style_sheet(dark)))
    for name, colour in written.items():
        if f"#{name}" not in (theme.GRID, theme.ON_COLOUR, theme.GROUND):
            bright, dim = sorted((luminance(colour), luminance(ground)), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= 3, (name, colour)


@pytest.mark.contract
def test_text_from_records_is_text_in_every_panel_and_file(tmp_path):
    case = {"workload": 'a$b"</svg><script>', "target": "x<y>&z$", "variant": '#1c1e21 id="q" url(#r)'}
    records = [
        record(d, 8.0 / d, points=p, mode=m, **case)
        for d in (1, 2, 4)
        for p in (12, 24)
        for m in ("jacfwd", "jacrev")
    ]
    drawings = figures.make_figures(findings.read(made_up.write(tmp_path / "made", records)))
    assert {"scaling-strong", "crossover", "size", "losses"} <= {drawing.name for drawing in drawings}
    page = files.page_specs(drawings)
    assert "<" not in page and ">" not in page and "&" not in page
    for drawing in drawings:
        written = svg(drawing, tmp_path)
        root = ET.fromstring(written)
        assert "<script" not in written and "<y>" not in written
        shown = " ".join("".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text"))
        assert "x<y>&z$" in shown and all(word in shown for word in case["variant"].split())
        on_page = json.dumps(json.loads(page)["figures"][drawing.name])
        assert "var(--x1c1e21) id=" not in on_page


def test_strong_and_weak_are_never_in_one_figure(drawn, found):
    strong, weak = (
        str([panel.title for panel in drawn[f"scaling-{kind}"].panels]) for kind in ("strong", "weak")
    )
    assert "rbf" in strong and "linear" not in strong
    assert "for each device" in weak and "rbf" not in weak
    assert (
        devices.draw_scaling(
            "weak", [c for c in found.curves if c.kind == "strong"], found.scaling_fits, False
        )
        is None
    )


def test_a_point_of_a_weak_curve_is_no_strong_curve_that_is_not_drawn(drawn):
    assert "not drawn" not in drawn["scaling-strong"].caption


def test_speedup_efficiency_ideal_and_law_are_drawn(drawn):
    strong = drawn["scaling-strong"]
    names = [entry.name for entry in strong.legend]
    assert names == ["jacfwd (vmap), shard_map, points split", "jacrev (vmap), shard_map, points split"]
    assert "law that fits best" in strong.caption
    for panel in strong.panels:
        pale = [layer for layer in panel.layers if layer["mark"].get("strokeOpacity") == 0.2]
        assert len(pale) == 2
    assert [row["label"] for row in rows(strong, "text")] == ["ideal"] * 2
    assert titles(strong) == ["speed-up", "efficiency"]


def test_time_against_devices_comes_first_beside_the_speedup_over_one_program(drawn):
    assert next(iter(drawn)) == "devices" and titles(drawn["devices"]) == ["time"]
    records = [record(d, t / d, mode=m) for m, t in (("jacfwd", 8.0), ("jacrev", 20.0)) for d in (1, 2, 4)]
    records += [record(1, 5.0, mode=m, api="jit") for m in ("jacfwd", "jacrev")]
    both = devices.draw_times(curves.scaling_curves(records), False)
    assert titles(both) == ["time", "speed-up"]
    times = {(row["line"], row["devices"]): row["seconds"] for row in rows(both, "point", 0)}
    ratios = {(row["line"], row["devices"]): row["ratio"] for row in rows(both, "point", 1)}
    assert len(times) == len(ratios) == 6
    assert {round(times[at] * ratios[at], 9) for at in times} == {5.0}  # one program, whatever the mode


def test_a_ratio_that_is_not_determined_has_an_interval_and_no_mark():
    row = marks.ratio_row("jacfwd", "", 1.72, 0.59, 37.2)
    assert row["ratio"] is None and (row["low"], row["high"]) == (0.59, 37.2)
    assert marks.ratio_row("jacfwd", "", 1.72, 1.7, 1.8)["ratio"] == 1.72


def test_the_crossover_map_has_a_mode_and_a_time_in_each_cell(drawn, found):
    of = next(each for each in found.fastest_mode_maps if each.case.workload == "rbf")
    labels = [row["label"] for row in rows(drawn["crossover"], "text", 0)]
    assert len(of.cells) == len(labels) == 12
    assert all(re.fullmatch(r"jac(fwd|rev)\n[\d.]+ (s|ms|µs)( \?)?", label) for label in labels)


def test_growth_stands_at_the_end_of_its_line(drawn, found):
    exponents = {f"{growth.exponent.value:.2f}" for growth in found.size_exponents}
    assert exponents & {row["label"] for row in rows(drawn["size"], "text")}


def test_the_fuller_panels_come_first_and_two_sizes_make_no_curve():
    many = [record(points=p, mode=m, seconds=p / 10) for p in (12, 24, 48) for m in ("jacfwd", "jacrev")]
    few = [record(2, points=p, seconds=1.0 * p) for p in (12, 24)]
    panels = curves.size_sweeps([*few, *many])
    assert [panel.case.devices for panel in sizes.rank_sweeps(panels)] == [1]


def test_settings_of_the_front_have_names_and_marks_have_a_legend(drawn):
    assert {"16 points", f"{made_up.CHUNKS[0]} seed"} <= {
        row["label"] for row in rows(drawn["front"], "text")
    }
    assert [entry.name for entry in drawn["front"].legend] == [
        "chunk=auto",
        "not on the front",
        "on the front",
    ]


def axis_of(drawing, name, panel=0):
    """An axis of a panel as it is drawn: the logarithms of its ends."""
    channel = drawing.panels[panel].layers[-1]["encoding"][name]
    return [float(np.log(end)) for end in channel["scale"]["domain"]]


def test_intervals_lie_within_a_panel_of_settings():
    noisy = [1.0, 9.0, 0.1, 1.1, 0.9, 1.3, 1.2, 0.7, 1.05]
    records = [record(seconds=noisy, **asked(50)), record(seconds=2.0, chunk=2, **asked(90))]
    fronts = variants.pareto_fronts(records)
    low, high = fronts[0].fastest.timing.interval
    bottom, top = axis_of(memory.draw_fronts(fronts, False), "y")
    assert bottom < np.log(low) < 0 < np.log(high) < top


def test_of_very_many_settings_the_smallest_and_the_fastest_are_named_and_no_name_covers_another():
    records = [record(seconds=float(at % 7 + 1), chunk=at, **asked(1000 - at)) for at in range(1, 60)]
    (of,) = variants.pareto_fronts(records)
    drawn = memory.draw_fronts([of], False)
    named = {row["label"]: row for row in rows(drawn, "text")}
    assert {f"{one.timing.case.chunk} seeds" for one in (of.smallest, of.fastest)} <= set(named)
    bottom, top = axis_of(drawn, "y")
    left, right = axis_of(drawn, "x")
    beyond = [row for row in named.values() if (np.log(row["memory"]) - left) / (right - left) > 0.7]
    heights = sorted((np.log(row["seconds"]) - bottom) / (top - bottom) for row in beyond)
    assert all(above - below >= 0.04 for below, above in itertools.pairwise(heights))


def test_meshes_stand_in_order_of_devices_and_the_fastest_is_filled_where_it_is_sure(drawn):
    (panel,) = drawn["mesh"].panels
    assert panel.layers[-1]["encoding"]["x"]["sort"] == ["8x1", "4x2", "2x4", "1x8"]
    several = [
        record(8, seconds, split="both", mesh=shape)
        for shape, seconds in (("8x1", 2.0), ("4x2", 1.0), ("2x4", 1.0))
    ]
    assert [filled(several[:2]), filled(several[1:])] == [["4x2"], []]


def filled(records):
    """The meshes with filled marks."""
    of = devices.draw_meshes(variants.compare_variants(curves.pool_processes(records), "mesh"), False)
    layers = [layer for layer in of.panels[0].layers if "fill" in layer["encoding"]]
    return [row["mesh"] for layer in layers for row in layer["data"]["values"]]


def asked(memory):
    return {"temp_bytes": memory, "argument_bytes": 0, "output_bytes": 0}


@pytest.mark.contract
def test_two_hundred_curves_still_make_a_legible_figure():
    ways = [
        (m, a, b)
        for m in ("jacfwd", "jacrev", "linearize")
        for a in ("shard_map", "pmap")
        for b in ("vmap", "whole")
    ]
    of = [(d, p) for d in (1, 2) for p in range(1, 18)]
    records = [record(d, 8.0 / d, mode=m, api=a, batch=b, points=12 * p) for d, p in of for m, a, b in ways]
    strong = devices.draw_scaling("strong", curves.scaling_curves(records), (), False)
    assert "points=204" in texts(strong) and "points=192" not in texts(strong)
    assert "fastest on the most devices is drawn" in strong.caption and len(strong.legend) == 6


def test_many_settings_make_a_line_and_a_mark_for_each_mode_alone():
    of = [(mode, chunk) for mode in ("jacfwd", "jacrev") for chunk in (None, *range(1, 9))]
    records = [
        record(d, (8.0 + (c or 0)) / d, mode=m, chunk=c, **asked(90 - (c or 0)))
        for m, c in of
        for d in (1, 2)
    ]
    strong = devices.draw_scaling("strong", curves.scaling_curves(records), (), False)
    assert [entry.name for entry in strong.legend][:2] == [
        f"{m} (vmap), shard_map, points split" for m in ("jacfwd", "jacrev")
    ]
    both = memory.draw_memory(curves.pool_processes(records), False)
    assert [entry.name for entry in both.legend] == ["jacfwd (vmap)", "jacrev (vmap)"]
    assert (
        memory.draw_memory(curves.pool_processes(records[:18]), False) is None
    )  # of one mode: the figure of settings has it


def test_a_split_over_both_is_said_to_stand_with_its_fastest_mesh():
    records = [record(d, 8.0 / d, split="both", mesh=f"{d}x1") for d in (1, 2, 4)]
    strong = devices.draw_scaling("strong", curves.scaling_curves(records), (), False)
    assert (
        "the mesh that is fastest" in strong.caption
        and "both split, the fastest mesh" in strong.legend[0].name
    )
    assert (
        "mesh"
        not in devices.draw_scaling(
            "strong", curves.scaling_curves([record(d, 8.0 / d) for d in (1, 2)]), (), False
        ).caption
    )


def test_nothing_on_the_front_is_beaten_in_both():
    timings = curves.pool_processes([
        record(seconds=s, mode=m, peak_bytes=b)
        for m, s, b in (("jacfwd", 3.0, 10), ("jacrev", 1.0, 30), ("linearize", 3.5, 20), ("vmap_grad", 1.0, 40))
    ])  # fmt: skip
    places = [variants.MemoryPoint(variants.memory_of(timing), timing.median, timing) for timing in timings]
    assert [(place.memory, place.seconds) for place in variants.find_front(places)] == [(10, 3.0), (30, 1.0)]


def test_memory_is_what_was_seen_else_what_the_program_asks_for_else_unknown():
    asked = {"temp_bytes": 1, "argument_bytes": 2, "output_bytes": 4}
    of = (
        curves.pool_processes([record(**fields)])[0]
        for fields in (asked | {"peak_bytes": 9}, asked, {"temp_bytes": 1})
    )
    assert [variants.memory_of(timing) for timing in of] == [9, 7, None]


def test_the_most_ways_are_compared_in_memory_not_the_largest_problem():
    both = [record(points=12, mode=m, peak_bytes=10) for m in ("jacfwd", "jacrev")]
    timings = curves.pool_processes([*both, record(points=24, peak_bytes=20)])
    assert "points=12" in texts(memory.draw_memory(timings, False))
    assert memory.draw_memory(timings[:1], False) is None


def test_a_roofline_has_rates_under_measured_ceilings(found):
    (rbf, linear) = sorted(baselines.rooflines(found.timings), key=lambda each: each.case.workload != "rbf")
    dots = [dot for some in rbf.points.values() for dot in some]
    assert len(dots) == 6 and len(linear.points) == 1 and rbf.case.devices == 1
    assert rbf.memory == pytest.approx(1e12, rel=0.2) and rbf.arithmetic == pytest.approx(5e12, rel=0.2)
    for dot in dots:
        one = dot.timing.records[0]
        assert dot.intensity == pytest.approx(one.flops / (one.argument_bytes + one.output_bytes))
        assert dot.rate == pytest.approx(one.flops / dot.timing.median)


def test_without_ceilings_or_counts_there_is_no_roofline():
    counted = {"argument_bytes": 20, "output_bytes": 60, "work": (1e6, None)}
    assert baselines.rooflines(curves.pool_processes([record(**counted)])) == []


def test_the_parts_of_a_lost_efficiency_have_names(drawn):
    names = [entry.name for entry in drawn["losses"].legend]
    assert {"does the work", "serial work, contention and all else", "imbalance between processes"} <= set(
        names
    )
    assert all(entry.dash is None and entry.shape is None for entry in drawn["losses"].legend)


def test_the_losses_are_those_of_the_fastest_way_that_is_not_written_by_hand():
    times = {"jacfwd": 4.0, "jacrev": 6.0, "analytic": 1.0}
    several = curves.scaling_curves(
        [record(d, seconds / d, mode=mode) for mode, seconds in times.items() for d in (1, 2)]
    )
    parts = [(curve, (EfficiencyBreakdown(2, None, None, None, 0.0),)) for curve in several]
    shown = texts(costs.draw_losses(parts, False))
    assert "jacfwd (vmap), shard_map" in shown and "analytic" not in shown and "jacrev" not in shown


def test_of_nothing_nothing_is_drawn(tmp_path):
    assert figures.make_figures(findings.read(tmp_path)) == []


def test_ways_of_one_colour_are_told_apart_in_their_cells():
    vmap, whole, other = (
        curves.Method("jacfwd", "vmap"),
        curves.Method("jacfwd", "whole"),
        curves.Method("jacrev", "vmap"),
    )
    assert sizes.name_methods([vmap, whole, other]) == {
        vmap: "jacfwd vmap",
        whole: "jacfwd whole",
        other: "jacrev",
    }
    rowwise = curves.Method("jacfwd", "vmap", formulation="rowwise")
    assert sizes.name_methods([vmap, rowwise]) == {vmap: "jacfwd", rowwise: "jacfwd rowwise"}


@pytest.mark.parametrize(
    "value, text",
    [(7, "7"), (8192, "8,192"), (100_000, "100 k"), (262_144, "262,144"), (10**7, "10 M"), (2**20, "1.05 M")],
)
def test_a_size_is_written_in_few_letters(value, text):
    assert sizes.format_size(value) == text


def test_equal_times_have_an_axis_and_no_complaint(tmp_path):
    made = [
        record(d, 1e-3, mode=m, sizes={"p": p})
        for d in (1, 2)
        for m in ("jacfwd", "jacrev")
        for p in (2, 4, 8)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = {
            one.name: one
            for one in figures.make_figures(findings.read(made_up.write(tmp_path / "made", made)))
        }
    assert {row["label"] for row in rows(drawn["size"], "text")} == {"0.00"}
    assert ">0.00<" in svg(drawn["size"], tmp_path)


def test_sizes_of_more_than_64_bits_are_drawn(tmp_path):
    made = [record(1, float(1 + at), sizes={"p": p}) for at, p in enumerate((1, 10**19, 10**40))]
    assert "size" in {
        one.name for one in figures.make_figures(findings.read(made_up.write(tmp_path / "made", made)))
    }


def several(*rows, workload="rbf", kind=False):
    """Findings' curves of made-up records of (mode, size, devices)."""
    draw = np.random.default_rng(0)
    records = [
        made_up.record(draw, made_up.case_of(workload, m, s, d, weak=kind))
        for m, s, counts in rows
        for d in counts
    ]
    return curves.scaling_curves(records, ("weak" if kind else "strong",))


def test_a_series_that_does_not_begin_at_one_device_is_drawn_with_its_baseline_at_the_axis():
    drawn = devices.draw_scaling(
        "strong", several(("jacfwd", 2, (2, 4, 8)), ("jacrev", 2, (1, 2, 4))), [], False
    )
    assert titles(drawn) == [
        "speed-up relative to 2 devices", "efficiency relative to 2 devices", "speed-up", "efficiency",
    ]  # fmt: skip
    assert "Against the same program on 2 devices or one device." in drawn.caption
    assert "names it at its axis" in drawn.caption
    weak = devices.draw_scaling("weak", several(("jacfwd", 1, (2, 4, 8)), kind=True), [], False)
    assert "points=64 for each device" in texts(weak) and "(scaled) relative to 2 devices" in texts(weak)


def test_the_problem_that_the_caption_names_is_the_one_that_is_drawn():
    drawn = devices.draw_scaling(
        "strong", several(("jacfwd", 0, (1, 2, 4)), ("jacfwd", 2, (1, 2))), [], False
    )
    assert "m=256" in texts(drawn) and "m=4096" not in texts(drawn)
    assert "The largest problem of each workload is drawn." not in drawn.caption
    assert (
        "measured on 3 numbers of devices or more is drawn; larger ones were measured on fewer"
        in drawn.caption
    )
    drawn = devices.draw_scaling("strong", several(("jacfwd", 0, (1, 2)), ("jacfwd", 2, (1, 2))), [], False)
    assert "m=4096" in texts(drawn) and "The largest problem of each workload is drawn." in drawn.caption


def test_the_caption_of_the_memory_figure_does_not_call_the_fullest_problem_the_largest():
    both = [record(points=12, mode=m, peak_bytes=10) for m in ("jacfwd", "jacrev")]
    drawn = memory.draw_memory(curves.pool_processes([*both, record(points=24, peak_bytes=20)]), False)
    assert (
        "the problem with the most modes is drawn" in drawn.caption
        and "the largest problem of each" not in drawn.caption
    )

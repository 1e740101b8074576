"""What the figures show of studies made up to have a known shape, and that they are legible, safe and always the same."""

import importlib.util
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

from scaling.analysis import baselines, curves, findings, setting_comparison
from scaling.report import figures
from scaling.report.figures import costs, files, over_devices, theme
from scaling.report.figures import over_sizes as sizes
from tests.support import made_up
from tests.support.paths import TOP
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
def drawn(tmp_path_factory):
    """Every figure that may be, of a study of everything that there is to choose."""
    draw, folder = np.random.default_rng(0), tmp_path_factory.mktemp("drawn") / "made"
    cases = [
        made_up.case_of("rbf", m, s, d) for m in ("jacfwd", "jacrev") for s in (0, 2, 4) for d in (1, 2, 4, 8)
    ]
    cases += [made_up.case_of("linear", "jacfwd", 3, d, weak=True) for d in (1, 2, 4, 8)]
    records = [made_up.record(draw, case, replicate) for case in cases for replicate in range(3)]
    records += [each for devices in (1, 2, 4, 8) for each in made_up.machine(draw, devices)]
    records += [
        each
        for made in (made_up.settings, made_up.meshes)
        for replicate in range(3)
        for each in made(draw, 8, replicate)
    ]
    found = findings.read(made_up.write(folder, records, scaling=["strong", "weak"]))
    return {drawing.name: drawing for drawing in figures.make_figures(found)}


@pytest.fixture
def read(tmp_path):
    """Findings of records."""

    def from_records(records, scaling=("strong",)):
        return findings.read(made_up.write(tmp_path / "made", records, scaling=list(scaling)))

    return from_records


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
    assert set(drawn) == set(figures.NAMES)


@pytest.mark.contract
def test_the_same_values_give_the_same_bytes(found, drawn, tmp_path):
    again = figures.make_figures(found)
    assert files.page_specs(again) == files.page_specs(figures.make_figures(found))
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
    page = files.page_specs(list(drawn.values()))
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
    assert "var(--x1c1e21) id=" not in page


def test_the_crossover_map_has_a_mode_and_a_time_in_each_cell(drawn, found):
    of = next(each for each in found.fastest_mode_maps if each.case.workload == "rbf")
    labels = [row["label"] for row in rows(drawn["crossover"], "text", 0)]
    assert len(of.cells) == len(labels) == 12
    assert all(re.fullmatch(r"jac(fwd|rev)\n[\d.]+ (s|ms|µs)( \?)?", label) for label in labels)


def test_the_fuller_panels_come_first_and_two_sizes_make_no_curve():
    many = [record(points=p, mode=m, seconds=p / 10) for p in (12, 24, 48) for m in ("jacfwd", "jacrev")]
    few = [record(2, points=p, seconds=1.0 * p) for p in (12, 24)]
    panels = curves.size_sweeps([*few, *many])
    assert [panel.case.devices for panel in sizes.rank_sweeps(panels)] == [1]


def test_nothing_on_the_front_is_beaten_in_both():
    timings = curves.pool_processes([
        record(seconds=s, mode=m, peak_bytes=b)
        for m, s, b in (("jacfwd", 3.0, 10), ("jacrev", 1.0, 30), ("linearize", 3.5, 20), ("vmap_grad", 1.0, 40))
    ])  # fmt: skip
    places = [
        setting_comparison.MemoryPoint(setting_comparison.memory_of(timing), timing.median, timing)
        for timing in timings
    ]
    assert [(place.memory, place.seconds) for place in setting_comparison.find_front(places)] == [
        (10, 3.0),
        (30, 1.0),
    ]


def test_memory_is_what_was_seen_else_what_the_program_asks_for_else_unknown():
    asked = {"temp_bytes": 1, "argument_bytes": 2, "output_bytes": 4}
    of = (
        curves.pool_processes([record(**fields)])[0]
        for fields in (asked | {"peak_bytes": 9}, asked, {"temp_bytes": 1})
    )
    assert [setting_comparison.memory_of(timing) for timing in of] == [9, 7, None]


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


def test_of_nothing_nothing_is_drawn(tmp_path):
    assert figures.make_figures(findings.read(tmp_path)) == []


@pytest.mark.parametrize(
    "value, text",
    [(7, "7"), (8192, "8,192"), (100_000, "100 k"), (262_144, "262,144"), (10**7, "10 M"), (2**20, "1.05 M")],
)
def test_a_size_is_written_in_few_letters(value, text):
    assert sizes.format_size(value) == text


def test_sizes_of_more_than_64_bits_are_drawn(tmp_path):
    made = [record(1, float(1 + at), sizes={"p": p}) for at, p in enumerate((1, 10**19, 10**40))]
    assert "size" in {
        one.name for one in figures.make_figures(findings.read(made_up.write(tmp_path / "made", made)))
    }


def axis_of(drawing, name, panel=0):
    """The ends of an axis of a panel."""
    channel = drawing.panels[panel].layers[-1]["encoding"][name]
    return channel["scale"]["domain"]


def several(*rows, weak=False):
    """Made-up records of (mode, size, devices)."""
    draw = np.random.default_rng(0)
    return [
        made_up.record(draw, made_up.case_of("rbf", m, s, d, weak=weak))
        for m, s, counts in rows
        for d in counts
    ]


def test_strong_and_weak_are_never_in_one_figure(drawn):
    strong, weak = (
        str([panel.title for panel in drawn[f"scaling-{kind}"].panels]) for kind in ("strong", "weak")
    )
    assert "rbf" in strong and "for each device" not in strong
    assert "for each device" in weak and "rbf" not in weak


def test_speedup_efficiency_ideal_and_law_are_drawn(read):
    draw = np.random.default_rng(0)
    cases = [made_up.case_of("rbf", m, 2, d) for m in ("jacfwd", "jacrev") for d in (1, 2, 4, 8)]
    strong = over_devices.draw_scaling(
        "strong", read([made_up.record(draw, c, r) for c in cases for r in range(3)])
    )
    names = [entry.name for entry in strong.legend]
    assert names == ["jacfwd (vmap), shard_map, points split", "jacrev (vmap), shard_map, points split"]
    for panel in strong.panels:
        assert len([layer for layer in panel.layers if layer["mark"].get("strokeOpacity") == 0.2]) == 2
    assert [row["label"] for row in rows(strong, "text")] == ["ideal", "jacrev", "jacfwd"] * 2
    assert titles(strong) == ["speed-up", "efficiency"]


def test_time_against_devices_comes_first_beside_the_speedup_over_one_program(drawn, read):
    assert next(iter(drawn)) == "devices"
    records = [record(d, t / d, mode=m) for m, t in (("jacfwd", 8.0), ("jacrev", 20.0)) for d in (1, 2, 4)]
    records += [record(1, 5.0, mode=m, api="jit") for m in ("jacfwd", "jacrev")]
    both = over_devices.draw_times(read(records))
    assert titles(both) == ["time", "speed-up"]
    points = rows(both, "point", 1)
    assert len(points) == 6 and {round(row["seconds"] * row["against_jit"], 9) for row in points} == {5.0}


def test_a_ratio_that_is_not_determined_has_an_interval_and_no_mark(read):
    wild = [0.1, 0.1, 0.1, 1.0, 9.0, 9.0, 9.0]
    strong = over_devices.draw_scaling("strong", read([record(1, wild), record(2, wild[::-1])]))
    (row,) = [row for row in rows(strong, "point", 0) if row["devices"] == 2]
    assert row["speedup"] is None and row["speedup_low"] < 0.5 and row["speedup_high"] > 2
    assert "not determined" in row["tip"]


def test_at_most_four_lines_have_labels_at_their_ends_and_more_have_none(read):
    modes = ["jacfwd", "jacrev", "linearize", "vmap_grad", "analytic"]
    for count, expected in ((4, 4), (5, 0)):
        records = [record(d, (4.0 + at) / d, mode=m) for at, m in enumerate(modes[:count]) for d in (1, 2)]
        found = over_devices.draw_times(read(records))
        assert len({row["label"] for row in rows(found, "text", 0)} - {"ideal"}) == expected


def test_labels_at_line_ends_lie_apart(read):
    records = [
        record(d, (4.0 + at / 100) / d, mode=m) for at, m in enumerate(("jacfwd", "jacrev")) for d in (1, 2)
    ]
    drawing = over_devices.draw_times(read(records))
    low, high = axis_of(drawing, "y")
    one, other = (row["seconds"] for row in rows(drawing, "text", 0) if "line" in row)
    assert abs(np.log(one / other)) / np.log(high / low) > 0.06


def protanopia(colour):
    """A colour as somebody without red cones sees it (Machado and others, 2009, severity 1)."""
    seen = np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    )
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return seen @ linear


def test_no_two_modes_look_alike_without_red_or_in_print(drawn):
    """They differ in shape, which paper shows too, or clearly in colour."""
    signs = sorted(set(theme._MODES.values()))
    for one in signs:
        for other in signs:
            far = np.abs(protanopia(one[0]) - protanopia(other[0])).max()
            assert one == other or one[1] != other[1] or far > 0.1


def test_variants_of_a_mode_have_its_colour_and_shape_and_a_dash_of_their_own():
    cases = {api: record(api=api).case for api in ("shard_map", "pmap", "jit")}
    styles = theme.line_styles(cases)
    assert len({(style.colour, style.shape) for style in styles}) == 1
    assert len({style.dash for style in styles}) == 3


def test_a_mark_says_the_exponent_of_its_line(read):
    made = [record(points=p, seconds=p / 10) for p in (12, 24, 48)]
    drawing = sizes.draw_sizes(read(made))
    assert all("to the power of 1" in row["tip"] for row in rows(drawing, "point"))


def test_equal_times_have_an_axis_and_no_complaint(read, tmp_path):
    made = [
        record(d, 1e-3, mode=m, sizes={"p": p})
        for d in (1, 2)
        for m in ("jacfwd", "jacrev")
        for p in (2, 4, 8)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        named = {one.name: one for one in figures.make_figures(read(made))}
    assert "jacfwd" in svg(named["size"], tmp_path)


def asked(memory):
    return {"temp_bytes": memory, "argument_bytes": 0, "output_bytes": 0}


def test_memory_settings_on_the_front_have_names_and_the_others_none(read):
    made = [record(seconds=2.0, chunk=2, **asked(50)), record(seconds=1.0, **asked(100))]
    made += [record(seconds=3.0, chunk=3, **asked(90))]
    drawing = costs.draw_memory(read(made))
    assert [row["label"] for row in rows(drawing, "text")] == ["2 seeds"] and len(rows(drawing, "point")) == 3


def test_the_most_programs_are_compared_in_memory_not_the_largest_problem(read):
    both = [record(points=12, mode=m, peak_bytes=10) for m in ("jacfwd", "jacrev")]
    drawing = costs.draw_memory(read([*both, record(points=24, peak_bytes=20)]))
    assert "points=12" in texts(drawing) and "the problem with the most programs is drawn" in drawing.caption


def test_meshes_stand_in_order_of_devices_and_the_fastest_is_filled_where_it_is_sure(read):
    of = [("8x1", 2.0), ("4x2", 1.0), ("2x4", 3.0)]
    made = [record(8, seconds, split="both", mesh=shape) for shape, seconds in of]
    drawing = over_devices.draw_meshes(read(made))
    assert drawing.panels[0].layers[-1]["encoding"]["x"]["sort"] == ["8x1", "4x2", "2x4"]
    filled = [row["mesh"] for row in rows(drawing, "point") if row["fill"] != theme.GROUND]
    assert filled == ["4x2"] and any("2.00x" in row["tip"] for row in rows(drawing, "point"))


def test_the_losses_are_those_of_the_fastest_mode_that_is_not_written_by_hand(read):
    times = {"jacfwd": 4.0, "jacrev": 6.0, "analytic": 1.0}
    made = [
        record(d, seconds / d, mode=mode, floor_seconds=1e-3)
        for mode, seconds in times.items()
        for d in (1, 2)
    ]
    shown = texts(costs.draw_losses(read(made)))
    assert "jacfwd (vmap), shard_map" in shown and "analytic" not in shown and "jacrev" not in shown


@pytest.mark.contract
def test_two_hundred_curves_still_make_a_legible_figure(read):
    kinds = [
        (m, a, b)
        for m in ("jacfwd", "jacrev", "linearize")
        for a in ("shard_map", "pmap")
        for b in ("vmap", "whole")
    ]
    of = [(d, p) for d in (1, 2) for p in range(1, 18)]
    records = [record(d, 8.0 / d, mode=m, api=a, batch=b, points=12 * p) for d, p in of for m, a, b in kinds]
    strong = over_devices.draw_scaling("strong", read(records))
    assert "points=204" in texts(strong) and "points=192" not in texts(strong)
    assert "fastest on the most devices is drawn" in strong.caption and len(strong.legend) == 6


def test_a_split_over_both_is_said_to_stand_with_its_fastest_mesh(read):
    records = [record(d, 8.0 / d, split="both", mesh=f"{d}x1") for d in (1, 2, 4)]
    strong = over_devices.draw_scaling("strong", read(records))
    assert "the mesh that is fastest" in strong.caption
    assert "both split, the fastest mesh" in strong.legend[0].name


def test_a_series_that_does_not_begin_at_one_device_is_drawn_with_its_baseline_at_the_axis(read):
    drawing = over_devices.draw_scaling(
        "strong", read(several(("jacfwd", 2, (2, 4, 8)), ("jacrev", 2, (1, 2, 4))))
    )
    assert titles(drawing) == [
        "speed-up relative to 2 devices", "efficiency relative to 2 devices", "speed-up", "efficiency",
    ]  # fmt: skip
    assert "against the same program on 2 devices or one device." in drawing.caption


def test_the_problem_that_the_caption_names_is_the_one_that_is_drawn(read):
    drawing = over_devices.draw_scaling(
        "strong", read(several(("jacfwd", 0, (1, 2, 4)), ("jacfwd", 2, (1, 2))))
    )
    assert "m=256" in texts(drawing) and "m=4096" not in texts(drawing)
    assert (
        "measured on 3 numbers of devices or more is drawn; larger ones were measured on fewer"
        in drawing.caption
    )


def test_no_committed_figure_is_older_than_the_code_that_draws_it_or_its_records():
    """Where this fails: scripts/figures draws them anew."""
    path = TOP / "scripts" / "benchmarks" / "figures.py"
    spec = importlib.util.spec_from_file_location("drawing_of_docs", path)
    drawing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawing)
    noted = json.loads(drawing.DRAWN.read_text())
    assert noted and set(noted) <= set(drawing.FIGURES)
    for name, (study, _) in drawing.FIGURES.items():
        assert (name in noted) == (drawing.DATA / study).is_dir(), name
        assert (TOP / "docs" / f"{name}.png").is_file(), name
    for name, digest in noted.items():
        assert digest == drawing.digest(drawing.FIGURES[name][0]), f"docs/{name}.png"

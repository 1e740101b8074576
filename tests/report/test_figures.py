"""Tests of the figures of studies with known results: their content, legibility, escaping and reproducibility."""

import importlib.util
import json
import re
import resource
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import vl_convert
from altair.vegalite.v6.schema.core import load_schema

from scaling.analysis import findings
from scaling.analysis.sweeps import size_sweeps
from scaling.analysis.timings import pool_processes
from scaling.core.case import Refusal
from scaling.report import export, tables
from scaling.report.figures import charts, files, marks
from scaling.report.proposal import write_proposal
from tests.support import made_up, reports
from tests.support.paths import TOP
from tests.support.records import record

COLOUR = re.compile(r'"#[0-9a-f]{6}"')


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Return two modes at three sizes on 1, 2, 4 and 8 devices, a weak curve, machine peaks, memory settings and meshes."""
    generator, folder = np.random.default_rng(0), tmp_path_factory.mktemp("drawn") / "made"
    cases = [
        made_up.case_of("rbf", m, s, d) for m in ("jacfwd", "jacrev") for s in (0, 2, 4) for d in (1, 2, 4, 8)
    ]
    cases += [made_up.case_of("linear", "jacfwd", 3, d, weak=True) for d in (1, 2, 4, 8)]
    records = [made_up.record(generator, case, replicate) for case in cases for replicate in range(3)]
    records += [row for devices in (1, 2, 4, 8) for row in made_up.machine(generator, devices)]
    records += [
        row
        for make in (made_up.settings, made_up.meshes)
        for replicate in range(3)
        for row in make(generator, 8, replicate)
    ]
    return findings.read(made_up.write(folder, records, scaling=["strong", "weak"]))


@pytest.fixture(scope="module")
def drawings(study):
    """Return every figure of the study, by name."""
    return {drawing.name: drawing for drawing in charts.make_figures(study)}


@pytest.fixture
def read(tmp_path):
    """Return a function from records to the findings of their study."""

    def read_records(records, scaling=("strong",)):
        return findings.read(made_up.write(tmp_path / "made", records, scaling=list(scaling)))

    return read_records


def texts(drawing):
    """Return the titles of the panels of a figure and their charts with their rows, as JSON."""
    return json.dumps([[panel.title, panel.chart] for panel in drawing.panels], ensure_ascii=False)


def rows(drawing, mark=None, panel=None):
    """Return the data rows of the marks of a kind, of all panels or of the panel with index `panel`."""
    panels = drawing.panels if panel is None else [drawing.panels[panel]]
    layers = [
        (shown.chart | layer)["data"]
        for shown in panels
        for layer in shown.chart["layer"]
        if mark in (None, layer["mark"]["type"])
    ]
    return [row for data in layers for row in data["values"]]


def y_titles(drawing):
    """Return the title of the vertical axis of each panel."""
    return [panel.chart["encoding"]["y"]["title"] for panel in drawing.panels]


def svg_text(drawing, tmp_path):
    """Return the text of the SVG file of a figure."""
    (content,) = files.encode_figures([drawing], findings.read(tmp_path), "svg").values()
    return content.decode()


def test_every_figure_with_data_is_drawn(drawings):
    assert set(drawings) == {"devices", "scaling-strong", "scaling-weak", "crossover", "size"}


@pytest.mark.thorough
def test_same_values_give_identical_files(study):
    again = charts.make_figures(study)
    assert files.page_specs(again) == files.page_specs(charts.make_figures(study))
    for extension in files.ENCODERS:
        contents = [*files.encode_figures(again[:1], study, extension).values()]
        contents += files.encode_figures(again[:1], study, extension).values()
        # The library numbers the clip paths of all files of a process.
        first, second = (re.sub(rb"clip\d+", b"clip", content) for content in contents)
        # The library writes the entries of PDF dictionaries, which are unordered, in any order.
        assert len(first) == len(second) if extension == "pdf" else first == second
        assert b"CreationDate" not in first


def test_page_and_files_have_the_same_colors_and_files_a_ground(drawings):
    for drawing in drawings.values():
        spec = files.file_spec(drawing, "")
        assert spec["config"]["background"] == marks.GROUND
        assert set(COLOUR.findall(files.page_specs([drawing]))) <= set(COLOUR.findall(json.dumps(spec)))


def test_figures_are_valid_vega_lite_specifications(drawings):
    schema = jsonschema.Draft7Validator(load_schema())
    for drawing in drawings.values():
        assert schema.is_valid(files.file_spec(drawing, "")), drawing.name


def test_figure_file_names_study_machine_date_and_commit(drawings, study):
    text = files.encode_figures([drawings["size"]], study, "svg")["size.svg"].decode()
    ET.fromstring(text)
    for word in (study.name, "An accelerator", "2026-01-01", "commit cccccccccccc"):
        assert word in text


def test_a_limit_of_virtual_memory_in_which_v8_aborts_is_refused(study, tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**35, resource.RLIM_INFINITY))
    for write in (lambda: export.FORMATS["svg"](study), lambda: write_proposal(tmp_path, study)):
        with pytest.raises(Refusal, match="set `ulimit -v unlimited`"):
            write()
    assert not list(tmp_path.iterdir())


def test_page_and_files_use_the_same_vega_version():
    head = (Path(files.__file__).parents[1] / "vega.min.js").read_text()[:200]
    assert f"Vega {vl_convert.get_vega_version()}," in head, "make it anew: see CONTRIBUTING.md"
    assert f"Vega-Embed {vl_convert.get_vega_embed_version()}," in head


def test_each_mode_has_the_same_color_in_all_figures(drawings):
    colours = {}
    for drawing in drawings.values():
        for style in drawing.legend:
            colours.setdefault(style.name.split(" ")[0], set()).add(style.color)
    assert all(len(colours[mode]) == 1 for mode in ("jacfwd", "jacrev"))
    assert colours["jacfwd"] != colours["jacrev"]


def luminance(colour):
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_lines_have_sufficient_contrast_with_the_background(drawings):
    colours = {style.color for drawing in drawings.values() for style in drawing.legend}
    palette = {color for color, _ in marks._MODES.values()} | {
        *marks._ENGINE_COLORS.values(),
        marks.SKY,
        marks.MUTED,
    }
    for colour in colours | palette:
        bright, dim = sorted((luminance(colour), luminance(marks.GROUND)), reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= 3, colour


@pytest.mark.thorough
def test_text_from_records_is_escaped_in_every_panel_and_file(tmp_path):
    case = {"workload": 'a$b"</svg><script>', "target": "x<y>&z$", "variant": '#1c1e21 id="q" url(#r)'}
    records = [
        record(d, 8.0 / d, points=p, mode=m, **case)
        for d in (1, 2, 4)
        for p in (12, 24)
        for m in ("jacfwd", "jacrev")
    ]
    drawings = charts.make_figures(findings.read(made_up.write(tmp_path / "made", records)))
    assert {"scaling-strong", "crossover", "size"} <= {drawing.name for drawing in drawings}
    page = files.page_specs(drawings)
    assert "<" not in page and ">" not in page and "&" not in page
    for drawing in drawings:
        svg_file = svg_text(drawing, tmp_path)
        root = ET.fromstring(svg_file)
        assert "<script" not in svg_file and "<y>" not in svg_file
        shown = " ".join("".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text"))
        assert "x<y>&z$" in shown and all(word in shown for word in case["variant"].split())


def test_crossover_map_has_a_mode_and_a_time_in_each_cell(drawings, study):
    mode_map = next(candidate for candidate in study.fastest_mode_maps if candidate.case.workload == "rbf")
    labels = [row["label"] for row in rows(drawings["crossover"], "text", 0)]
    assert len(mode_map.cells) == len(labels) == 12
    assert all(re.fullmatch(r"jac(fwd|rev)\n[\d.]+ (s|ms|µs)( \?)?", label) for label in labels)


def test_panels_with_more_data_come_first():
    many = [record(points=p, mode=m, seconds=p / 10) for p in (12, 24, 48) for m in ("jacfwd", "jacrev")]
    few = [record(2, points=p, seconds=1.0 * p) for p in (12, 24)]
    panels = size_sweeps(pool_processes([*few, *many]))
    assert [panel.case.devices for panel in charts.rank_sweeps(panels)] == [1, 2]


def test_memory_is_the_measured_peak_or_else_the_program_request(read):
    program = {"temp_bytes": 10**6, "argument_bytes": 2 * 10**6, "output_bytes": 4 * 10**6}
    fields = (program | {"peak_bytes": 9 * 10**6}, program, {"temp_bytes": 1})
    found = read([record(points=points, **each) for points, each in zip((4, 8, 16), fields, strict=True)])
    (table,) = (table for table in tables.folded_tables(found) if table.anchor == "measured")
    assert [row[table.columns.index("memory")] for row in table.rows] == ["9.00 MB", "7.00 MB", ""]


def test_empty_folder_has_no_figures(tmp_path):
    assert charts.make_figures(findings.read(tmp_path)) == []


def test_sizes_beyond_64_bits_are_drawn(tmp_path):
    records = [record(1, float(1 + at), sizes={"p": p}) for at, p in enumerate((1, 10**19, 10**40))]
    assert "size" in {
        figure.name
        for figure in charts.make_figures(findings.read(made_up.write(tmp_path / "made", records)))
    }


def test_a_size_beyond_the_range_of_a_float_is_in_the_tables_but_not_in_the_figure_of_sizes(tmp_path):
    records = [record(1, float(1 + at), sizes={"p": 10 ** (200 * at)}) for at in range(3)]
    folder = made_up.write(tmp_path / "made", records)
    assert charts.draw_sizes(findings.read(folder)) is None
    assert f"p={10**400}" in reports.write_report(folder).read_text()


def axis_of(drawing, name, panel=0):
    """Return the ends of an axis of a panel."""
    return drawing.panels[panel].chart["encoding"][name]["scale"]["domain"]


def scaling_records(*rows, weak=False):
    """Return made-up records from rows (mode, index of the size, device counts)."""
    generator = np.random.default_rng(0)
    return [
        made_up.record(generator, made_up.case_of("rbf", m, s, d, weak=weak))
        for m, s, counts in rows
        for d in counts
    ]


def test_strong_and_weak_scaling_are_in_separate_figures(drawings):
    strong, weak = (
        str([panel.title for panel in drawings[f"scaling-{kind}"].panels]) for kind in ("strong", "weak")
    )
    assert "rbf" in strong and "for each device" not in strong
    assert "for each device" in weak and "rbf" not in weak


def test_speedup_efficiency_and_ideal_are_drawn(read):
    generator = np.random.default_rng(0)
    cases = [made_up.case_of("rbf", m, 2, d) for m in ("jacfwd", "jacrev") for d in (1, 2, 4, 8)]
    strong = charts.draw_scaling(
        "strong", read([made_up.record(generator, c, r) for c in cases for r in range(3)])
    )
    names = [entry.name for entry in strong.legend]
    assert names == ["jacfwd (vmap), shard_map, points split", "jacrev (vmap), shard_map, points split"]
    assert [row["label"] for row in rows(strong, "text")] == ["ideal", "jacrev", "jacfwd"] * 2
    assert y_titles(strong) == ["speed-up", "efficiency"]


def test_first_figure_shows_time_and_speedup_over_the_best_jit_program(drawings, read):
    assert next(iter(drawings)) == "devices"
    records = [record(d, t / d, mode=m) for m, t in (("jacfwd", 8.0), ("jacrev", 20.0)) for d in (1, 2, 4)]
    records += [record(1, 5.0, mode=m, api="jit") for m in ("jacfwd", "jacrev")]
    drawing = charts.draw_times(read(records))
    assert y_titles(drawing) == ["time", "speed-up"]
    times, ratios = rows(drawing, "point", 0), rows(drawing, "point", 1)
    products = [time["y"] * ratio["y"] for time, ratio in zip(times, ratios, strict=True)]
    assert products == pytest.approx([5.0] * 6)
    without_jit = charts.draw_times(read(records[:6]))
    assert y_titles(without_jit) == ["time"]


def test_times_of_curves_with_several_baselines_share_a_panel(read):
    records = [record(d, 8.0 / d) for d in (1, 2, 4)] + [record(d, 4.0 / d, mode="jacrev") for d in (2, 4)]
    found = read(records)
    drawing = charts.draw_times(found)
    assert y_titles(drawing) == ["time"] and len(rows(drawing, "point", 0)) == 5
    assert len(charts.draw_scaling("strong", found).panels) == 4  # two baselines


def test_figures_of_hundreds_of_sizes_are_legible(read):
    modes = {"jacfwd": 1.0, "jacrev": 2.0}
    found = read([record(1, n * t, mode=m, points=n) for n in range(1, 201) for m, t in modes.items()])
    ticks = charts.draw_sizes(found).panels[0].chart["encoding"]["x"]["axis"]["values"]
    assert len(ticks) <= 25 and set(ticks) >= {1.0, 10.0, 100.0}
    crossover = charts.draw_crossover(found)
    assert crossover.panels[0].height < 1500 and len(rows(crossover, "rect")) == 200
    assert "have no text" in crossover.caption


def test_an_axis_over_14_decades_has_at_most_nine_ticks():
    axis = marks.log_axis("time", [2e-12, 5e2], "s")["axis"]
    assert 4 < len(axis["values"]) <= 9


def test_undetermined_ratio_has_an_interval_and_no_mark(read):
    scattered = [0.1, 0.1, 0.1, 1.0, 9.0, 9.0, 9.0]
    strong = charts.draw_scaling("strong", read([record(1, scattered), record(2, scattered[::-1])]))
    (row,) = [row for row in rows(strong, "point", 0) if row["x"] == 2]
    assert row["y"] is None and row["low"] < 0.5 and row["high"] > 2
    assert "not determined" in row["tip"]


def test_lines_have_end_labels_only_if_there_are_at_most_four(read):
    modes = ["jacfwd", "jacrev", "linearize", "vmap_grad", "analytic"]
    for count, expected in ((4, 4), (5, 0)):
        records = [record(d, (4.0 + at) / d, mode=m) for at, m in enumerate(modes[:count]) for d in (1, 2)]
        drawing = charts.draw_times(read(records))
        assert len({row["label"] for row in rows(drawing, "text", 0)} - {"ideal"}) == expected


def test_symbols_of_a_legend_are_not_filled_as_those_of_the_points_also_with_end_labels(read, tmp_path):
    drawing = charts.draw_times(
        read([record(d, s / d, mode=m) for d in (1, 2) for m, s in (("jacfwd", 1.0), ("jacrev", 2.0))])
    )
    text = svg_text(drawing, tmp_path)
    symbols = re.findall(r'role-legend-symbol"[^>]*><path ([^>]*)>', text)
    assert len(symbols) == 2 and ">jacrev</text>" in text
    for symbol, color in zip(symbols, (marks.BLUE, marks.VERMILION), strict=True):
        assert f'stroke="{color}"' in symbol and f'fill="{color}"' not in symbol, symbol


def test_end_labels_do_not_overlap(read):
    records = [
        record(d, (4.0 + at / 100) / d, mode=m) for at, m in enumerate(("jacfwd", "jacrev")) for d in (1, 2)
    ]
    drawing = charts.draw_times(read(records))
    low, high = axis_of(drawing, "y")
    first, second = (row["y"] for row in rows(drawing, "text", 0) if "line" in row)
    assert abs(np.log(first / second)) / np.log(high / low) > 0.06


def protanopia(colour):
    """Return a color as seen with protanopia, that is without red cones (Machado et al., 2009, severity 1)."""
    matrix = np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    )
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return matrix @ linear


def test_modes_are_distinguishable_without_red_and_in_print():
    """Two modes differ in shape, which is visible in print too, or clearly in color."""
    styles = sorted(set(marks._MODES.values()))
    for style in styles:
        for other in styles:
            distance = np.abs(protanopia(style[0]) - protanopia(other[0])).max()
            assert style == other or style[1] != other[1] or distance > 0.1


def test_apis_of_a_mode_share_color_and_shape_and_differ_in_dash():
    cases = {api: record(api=api).case for api in ("shard_map", "pmap", "jit")}
    styles = marks.line_styles(cases)
    assert len({(style.color, style.shape) for style in styles}) == 1
    assert len({style.dash for style in styles}) == 3


def test_tooltip_of_a_mark_states_the_exponent_of_its_line(read):
    records = [record(points=p, seconds=p / 10) for p in (12, 24, 48)]
    drawing = charts.draw_sizes(read(records))
    assert all("exponent 1" in row["tip"] for row in rows(drawing, "point"))


def test_equal_times_are_drawn_without_warnings(read, tmp_path):
    records = [
        record(d, 1e-3, mode=m, sizes={"p": p})
        for d in (1, 2)
        for m in ("jacfwd", "jacrev")
        for p in (2, 4, 8)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        by_name = {figure.name: figure for figure in charts.make_figures(read(records))}
    assert "jacfwd" in svg_text(by_name["size"], tmp_path)


@pytest.mark.thorough
def test_two_hundred_curves_are_reduced_to_a_legible_figure(read):
    kinds = [
        (m, a, b)
        for m in ("jacfwd", "jacrev", "linearize")
        for a in ("shard_map", "pmap")
        for b in ("vmap", "whole")
    ]
    devices_and_points = [(d, p) for d in (1, 2) for p in range(1, 18)]
    records = [
        record(d, 8.0 / d, mode=m, api=a, batch=b, points=12 * p)
        for d, p in devices_and_points
        for m, a, b in kinds
    ]
    strong = charts.draw_scaling("strong", read(records))
    assert "points=204" in texts(strong) and "points=192" not in texts(strong)
    assert "fastest on the most devices is drawn" in strong.caption and len(strong.legend) == 6


def test_axis_title_names_a_baseline_other_than_one_device(read):
    drawing = charts.draw_scaling(
        "strong", read(scaling_records(("jacfwd", 2, (2, 4, 8)), ("jacrev", 2, (1, 2, 4))))
    )
    assert y_titles(drawing) == [
        "speed-up relative to 2 devices", "efficiency relative to 2 devices", "speed-up", "efficiency",
    ]  # fmt: skip
    assert "against the same program on 2 devices or one device." in drawing.caption


def test_problem_named_in_the_caption_is_the_one_drawn(read):
    drawing = charts.draw_scaling(
        "strong", read(scaling_records(("jacfwd", 0, (1, 2, 4)), ("jacfwd", 2, (1, 2))))
    )
    assert "m=256" in texts(drawing) and "m=4096" not in texts(drawing)
    assert "the largest problem on 3 numbers of devices or more is drawn" in drawing.caption


def test_committed_figures_are_up_to_date_with_their_code_and_records():
    """If this fails, run scripts/figures, which draws the figures again."""
    path = TOP / "scripts" / "benchmarks" / "figures.py"
    spec = importlib.util.spec_from_file_location("drawing_of_docs", path)
    figures_script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures_script)
    digests = json.loads(figures_script.DRAWN.read_text())
    assert digests and set(digests) <= set(figures_script.FIGURES)
    for name, (study, _) in figures_script.FIGURES.items():
        assert (name in digests) == (figures_script.DATA / study).is_dir(), name
        assert (TOP / "docs" / f"{name}.png").is_file(), name
    for name, digest in digests.items():
        assert digest == figures_script.digest(figures_script.FIGURES[name][0]), f"docs/{name}.png"

"""Figures of plans: predicted time over devices with measurements of the same cases, and their scores."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from scaling.analysis.curves import Curve, family_key, family_name, problem_size, size_name
from scaling.analysis.forecast import Forecast, PredictedCurve, PredictedPoint
from scaling.analysis.grouping import group_by
from scaling.analysis.score import PlannedPair, PlanScores
from scaling.core.case import Case, label, problem
from scaling.core.formatting import count_of, format_duration
from scaling.report.figures import marks
from scaling.report.figures.devices import MOST_LINES, curve_name, curve_styles, fewer
from scaling.report.figures.marks import Axis, Figure, Panel, Row, Spec
from scaling.report.figures.theme import (
    BLUE,
    GREEN,
    GREY,
    GROUND,
    MUTED,
    OCHRE,
    OLIVE,
    PURPLE,
    SKY,
    VERMILION,
    LineStyle,
)  # fmt: skip

MOST_PANELS = 8
_SIGNS = (
    (BLUE, "circle"), (VERMILION, "square"), (GREEN, "up"), (PURPLE, "diamond"), (OCHRE, "down"), (SKY, "plus"),
    (OLIVE, "left"), (GREY, "cross"),
)  # fmt: skip


def draw_plan(forecast: Forecast, stem: str, curves: Sequence[Curve]) -> Figure | None:
    """Return predicted time over devices for the largest problem of each family, the largest first."""
    groups = _largest_problems(curve for curve in forecast.curves if len(curve.points) > 1)
    if not groups:
        return None
    kinds = {record.environment.get("device_kind") for record in forecast.records}
    same_kind = [c for c in curves if c.timings[0].records[0].environment.get("device_kind") in kinds]
    shown = [fewer(group) for group in groups[:MOST_PANELS]]
    measured = [_measured_curves(group, same_kind) for group in shown]
    styles = curve_styles(curve for group in shown for curve in group)
    panels = [_draw_group(group, known, styles) for group, known in zip(shown, measured, strict=True)]
    title = f"Planned for {forecast.title}: seconds over devices"
    caption = _describe(groups, [curve for known in measured for curve in known])
    return marks.compose(f"plan-{stem}", title, caption, panels, styles, MOST_PANELS)


def _largest_problems(curves: Iterable[PredictedCurve]) -> list[list[PredictedCurve]]:
    families = group_by(curves, lambda curve: family_key(curve.case)).values()
    problems = (group_by(f, lambda c: problem(_per_device(c.case, c.kind))).values() for f in families)
    groups = [max(some, key=lambda same: problem_size(same[0].case)) for some in problems]
    return sorted(groups, key=lambda group: (group[0].case.ad_mode.is_value, -problem_size(group[0].case)))


def _per_device(case: Case, kind: str) -> Case:
    """Return a case on one device; of a weak curve with the points of one device."""
    return replace(
        case, devices=1, mesh=None, points=case.points // case.devices if kind == "weak" else case.points
    )


def _measured_curves(group: Sequence[PredictedCurve], curves: Iterable[Curve]) -> list[Curve]:
    """Return the measured curves of the same cases."""
    planned = {(curve.kind, _per_device(curve.case, curve.kind)) for curve in group}
    return [curve for curve in curves if (curve.kind, _per_device(curve.case, curve.kind)) in planned]


def _draw_group(
    group: Sequence[PredictedCurve], measured: Sequence[Curve], styles: Sequence[LineStyle]
) -> Panel:
    predicted = [_predicted_row(curve, point) for curve in group for point in curve.points]
    known = [
        {"devices": timing.case.devices, **marks.timing_row(curve_name(curve), timing)}
        for curve in measured
        for timing in curve.timings
    ]
    rows = [*predicted, *known]
    counts = sorted({row["devices"] for row in rows})
    x = marks.count_axis("devices", "devices", counts)
    y = marks.log_axis("seconds", "time", marks.finite(rows, "seconds", "low", "high"), "s")
    first = min(group, key=lambda curve: (curve.points[0].devices, curve.points[0].seconds)).points[0]
    weak = group[0].kind == "weak"
    ideal = [(n, first.seconds * (1 if weak else first.devices / n)) for n in counts if n >= first.devices]
    layers = [
        _draw_band(predicted, x, y, styles),
        *marks.draw_guide(ideal, x, y, "ideal"),
        *_draw_predictions(predicted, x, y, styles),
        marks.draw_lines(known, x, y, styles, strokeWidth=3.2),
        marks.draw_intervals(known, x, y, styles),
        marks.draw_points(known, x, y, styles, size={"value": 150}),
        *_mark_formula([row for row in predicted if row["by_formula"]], predicted, x),
    ]
    size = size_name(_per_device(group[0].case, group[0].kind)) + (" for each device" if weak else "")
    return Panel(marks.panel_title(group[0].case, size, ""), tuple(layers))


def _predicted_row(curve: PredictedCurve, point: PredictedPoint) -> Row:
    low, high = point.interval
    time = format_duration(point.seconds, low, high)
    by = "predicted by formula" if point.by_formula else "predicted from the compiled program"
    tip = "\n".join((curve_name(curve), count_of(point.devices, "device"), time, by))
    return {
        "line": curve_name(curve), "devices": point.devices, "seconds": point.seconds, "low": low, "high": high,
        "by_formula": point.by_formula, "tip": tip,
    }  # fmt: skip


def _draw_band(rows: Sequence[Row], x: Axis, y: Axis, styles: Sequence[LineStyle]) -> Spec:
    ends = {"x": x.channel(), "y": y.channel("low"), "y2": {"field": "high"}}
    return marks.draw_layer(
        rows, "area", {"fillOpacity": 0.14, "line": False}, **ends, **marks.line_channels(styles)
    )


def _draw_predictions(rows: Sequence[Row], x: Axis, y: Axis, styles: Sequence[LineStyle]) -> list[Spec]:
    """Return filled marks of compiled programs; beyond them dotted lines with hollow marks."""
    compiled, formula = ([row for row in rows if row["by_formula"] is by] for by in (False, True))
    last = {row["line"]: row for row in compiled}  # where the dotted line begins
    beyond = [*(row for line, row in last.items() if line in {r["line"] for r in formula}), *formula]
    return [
        marks.draw_lines(compiled, x, y, styles),
        marks.draw_lines(beyond, x, y, styles, dotted=True),
        marks.draw_filled_points(compiled, x, y, styles),
        marks.draw_filled_points(formula, x, y, styles, GROUND),
    ]


def _mark_formula(beyond: Sequence[Row], rows: Sequence[Row], x: Axis) -> list[Spec]:
    """Return a mark where compiled programs end and formulas begin."""
    if not beyond:
        return []
    first = min(row["devices"] for row in beyond)
    known = [row["devices"] for row in rows if not row["by_formula"] and row["devices"] < first]
    place = math.sqrt(first * max(known)) if known else first / 1.05
    rows, text = (
        [{"devices": place, "label": "formula →"}],
        {"align": "left", "dx": 3, "dy": 6, "color": MUTED},
    )
    top, label = {"value": 0}, {"field": "label"}
    return [
        marks.draw_layer(rows, "rule", {"color": MUTED}, x=x.channel()),
        marks.draw_layer(rows, "text", text, x=x.channel(), y=top, text=label),
    ]


def _describe(groups: Sequence[Sequence[PredictedCurve]], measured: Sequence[Curve]) -> str:
    """Return what is drawn, and what is not."""
    shown = groups[:MOST_PANELS]
    caption = [
        "Predicted, not measured: the line is the median of the prediction, the band its 95 % interval; both "
        "axes are logarithmic. The largest problem of each workload that was planned on several numbers of "
        "devices is drawn."
    ]
    if any(point.by_formula for group in shown for curve in group for point in curve.points):
        caption.append(
            "Filled marks are programs compiled for that many devices; "
            "hollow ones, dotted, are by formula alone."
        )
    if measured:
        caption.append(
            "Heavy solid lines with large hollow marks were measured on such devices; "
            "bars are 95 % intervals."
        )
    if (environments := len({curve.environment for curve in measured})) > 1:
        caption.append(f"They are from {environments} environments, a line each.")
    if any(len(group) > MOST_LINES for group in shown):
        caption.append("Of the many layouts of a mode the one that is fastest on the most devices is drawn.")
    if left_out := groups[MOST_PANELS:]:
        names = "; ".join(family_name(group[0].case) for group in left_out)
        caption.append(f"{count_of(len(left_out), 'workload')} left out, but in the table: {names}.")
    return " ".join(caption)


def draw_scores(scores: PlanScores, stem: str) -> Figure:
    """Return predicted against measured seconds of each case."""
    pairs = scores.total.pairs
    workloads = sorted({pair.timing.case.workload for pair in pairs})
    ahead, rest = workloads[: len(_SIGNS) - 1], workloads[len(_SIGNS) - 1 :]
    names = [*ahead, *([rest[0] if len(rest) == 1 else f"{len(rest)} other workloads"] if rest else [])]
    line_of = dict(zip(ahead, ahead, strict=True)) | dict.fromkeys(rest, names[-1])
    styles = [LineStyle(name, *sign, None) for name, sign in zip(names, _SIGNS, strict=False)]
    rows = [_score_row(pair, line_of[pair.timing.case.workload]) for pair in pairs]
    values = marks.finite(rows, "measured", "predicted")
    x = marks.log_axis("measured", "measured time", values, "s")
    y = marks.log_axis("predicted", "predicted time", values, "s")
    low, high = x.domain
    layers = (
        *marks.draw_guide([(low, low), (high, high)], x, y, "as predicted", strokeDash=[1, 0]),
        *marks.draw_guide([(low, low * 2), (high / 2, high)], x, y),
        *marks.draw_guide([(low * 2, low), (high, high / 2)], x, y, "a factor of two"),
        marks.draw_points(rows, x, y, styles),
    )
    caption = (
        "A mark for each case that was both planned and measured on the same kind of device. On the line "
        "what was predicted is what was measured, above it took less than predicted; between the outer lines "
        "the two are within a factor of two."
    )
    if len(rest) > 1:
        caption += f" All workloads after the first {len(ahead)} have one sign."
    title = f"Predicted against measured: {scores.hardware}"
    return marks.compose(f"score-{stem}", title, caption, [Panel((), tuple(layers))], styles)


def _score_row(pair: PlannedPair, line: str) -> Row:
    measured, predicted = pair.timing.median, pair.ratio * pair.timing.median
    words = (
        label(pair.timing.case),
        f"measured {format_duration(measured)}",
        f"predicted {format_duration(predicted)}",
    )
    return {"line": line, "measured": measured, "predicted": predicted, "tip": "\n".join(words)}

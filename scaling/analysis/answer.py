"""The answer: what a results folder says, as sentences and a short table.

Does not know how a curve is computed (curves.py), nor pages and figures (report.py).
"""

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from scaling.analysis import certainty, forecast, trends
from scaling.analysis import curves as analysis
from scaling.analysis.baselines import Baseline
from scaling.analysis.curves import Curve, Fastest, Timing, baseline_name, family_name, ratio_of, size_name, volume
from scaling.analysis.findings import Findings, marks, read
from scaling.analysis.forecast import Forecast
from scaling.analysis.methods import describe_call, method_of
from scaling.analysis.pareto import chosen
from scaling.analysis.score import APART, PlanScores
from scaling.core import memory
from scaling.core.case import Case, problem
from scaling.core.formatting import (
    count_of,
    format_bytes,
    format_duration,
    format_number,
    format_percentage,
    format_ratio,
    format_seconds,
    is_ratio_determined,
)
from scaling.core.record import REASONS, Record

_MOST_ROWS = 20  # at a glance
_BOUGHT = (trends.fronts, trends.meshes, trends.overlaps, trends.colorings)  # what there is to choose beside the mode
COLUMNS = ("problem", "devices", "fastest", "time", "runner-up", "times as long")


def time_of(timing: Timing) -> str:
    return format_duration(timing.median, *(timing.interval or (None, None)))


def sentences(source: Path | Findings) -> list[str]:
    """What the folder says, in plain lines with figures in them: the fastest modes, the best scaling, and all that went wrong."""
    found = source if isinstance(source, Findings) else read(source)
    count = Counter(record.status for record in found.records)
    if not count["ok"] and found.forecasts:
        return [*_planned_alone(found), *_trouble(found)]
    if not count["ok"]:
        return ["Nothing has been measured: the folder holds no record of a case that ended well.", *_trouble(found)]
    parts = (
        headlines, trends.crossovers, _scaling_sentences, trends.laws, trends.growth, *_BOUGHT, _peer_sentences, _planned,
        _trouble,
    )  # fmt: skip
    return [sentence for part in parts for sentence in part(found)]


def heads(found: Findings) -> list[tuple[list[Fastest], list[Fastest]]]:
    """For each family all its problems on each number of devices, and those of its largest problem, the least time first.

    The largest of those that were measured on the most device counts: points that grow with their devices are all on one each.
    """
    families: dict[tuple, dict[tuple, list[Fastest]]] = {}
    for row in found.fastest:
        first = row.first
        of = families.setdefault((first.environment, first.honest, *analysis.family(first.case)), {})
        of.setdefault(problem(first.case), []).append(row)
    made = []
    for problems in families.values():
        largest = max(problems.values(), key=lambda rows: (len(rows), volume(rows[0].first.case)))
        everything = [row for rows in problems.values() for row in rows]
        made.append((everything, sorted(largest, key=lambda row: row.first.median)))
    return made


def headlines(found: Findings) -> list[str]:
    """For each family: the fastest way to its largest problem, on how many devices, what it costs, and how sure that is."""
    told = list[str]()
    if not found.fastest:
        kinds = dict.fromkeys(_what(timing.case) for timing in found.timings)
        told.append(f"No mode of JAX was measured, so that none is called the fastest; what was measured: {', '.join(kinds)}.")
    for rows, (row, *others) in heads(found):
        largest = volume(row.first.case) == max(volume(each.first.case) for each in rows)
        text = (
            _verdict(row, "at the largest size" if largest else "at the size")
            + _what_devices_buy(found, row.first, others)
            + _beside_by_hand(found, row)
            + _winners(rows)
        )
        told.append(f"{family_name(row.first.case)}: {text}.{marks(found, row.first.environment, row.first.honest)}")
    return told


def _what(case: Case) -> str:
    """What was timed, where it is no mode of JAX."""
    if case.kind != "case":
        return "what the machine can do"
    return case.engine if case.engine != "jax" else "values" if case.ad_mode.is_value else "derivatives written by hand"


def _verdict(row: Fastest, size: str) -> str:
    case, mode = row.first.case, named(row.first)
    at = f"on {count_of(case.devices, 'device')} {size} ({size_name(case)}): {time_of(row.first)}, {describe_call(case)}"
    if row.empty:
        floor = format_duration(certainty.dispatch_floor(row.first))
        return f"no mode is called the fastest; {mode} takes least, {at}, not distinguishable from an empty call ({floor})"
    if row.second is None:
        return f"{measured_alone(row)}, {at}"
    verdict = "is fastest" if row.distinguished else "is ahead of the next, but the two are not distinguished,"
    factor = format_seconds(f"the next, {method_of(row.second.case).name},", row.ratio, row.ratio_low, row.ratio_high)
    doubts = f"; not sure: {', '.join(row.doubts)}" if row.distinguished and row.doubts else ""
    return f"{mode} {verdict} {at}; {factor}{doubts}"


def named(timing: Timing) -> str:
    """Return how a derivative is taken, with what chunk=auto came to and the memory that it takes, in words."""
    name, auto = method_of(timing.case).name, chosen(timing.records[0])
    return f"{name} ({auto}{saved(timing.records[0])})" if auto else name


def saved(record: Record) -> str:
    """Return the memory of a device that chunk=auto takes beside that of all at once, in words; nothing where it is not told."""
    probes = (record.blocks or {}).get("probes")
    whole = [p.get("bytes") for p in probes if not (p.get("block") or p.get("chunk"))] if isinstance(probes, list) else []
    used = memory.taken(vars(record))
    return f", {format_bytes(used)} against {format_bytes(whole[0])} of all at once" if whole and whole[0] and used else ""


def measured_alone(row: Fastest) -> str:
    """Return in words that a mode has none to be compared with, and what else was measured of the same problem."""
    others = dict.fromkeys(method_of(timing.case).name for timing in row.others)
    return f"only {_listed([named(row.first), *others])} measured"


def _listed(names: Sequence[str]) -> str:
    """Names as the subject of a sentence: 'a was', 'a and b were', 'a, b and c were'."""
    *others, last = names
    return f"{', '.join(others)} and {last} were" if others else f"{last} was"


def _what_devices_buy(found: Findings, first: Timing, others: Sequence[Fastest]) -> str:
    """The speed-up of the fastest way over its baseline, or that one device is best."""
    point = found.places(first).get("strong")
    if point and not point.is_baseline:
        speedup, base = format_ratio(point.speedup, point.speedup_low, point.speedup_high), baseline_name(point.baseline_devices)
        same = f"the same program on {base}"
        known = is_ratio_determined(point.speedup_low, point.speedup_high)
        text = f". That is {speedup} as fast as {same}" if known else f". Its speed-up over {same} is {speedup}"
        text += f", efficiency {format_number(point.efficiency)}" if known else ""
        if point.against_jit is not None and is_ratio_determined(point.against_jit_low, point.against_jit_high):
            plain = format_ratio(point.against_jit, point.against_jit_low, point.against_jit_high)
            where = "there" if point.baseline_devices == 1 else "on one device"
            text += f", and {plain} as fast as the best plain jit program {where}"
        return text
    more = [row.first for row in others if row.first.case.devices > first.case.devices]
    if not more or not first.honest:
        return ""
    value, low, high = ratio_of(more[0], first)
    told = format_seconds(count_of(more[0].case.devices, "device"), value, low, high).replace(" takes ", " take ")
    if low is not None and high is not None and low <= 1 <= high:
        return f". More devices are not distinguished: {told}"
    return f". More devices do not pay: {told}"


def _beside_by_hand(found: Findings, row: Fastest) -> str:
    if not row.by_hand:
        return ""
    roofs = [s.roof for s in found.standings if s.roof and s.by_hand and s.by_hand[0] == 1 and _beside(s, row)]
    roof = f" ({format_percentage(roofs[0].fraction)} of the roof: {roofs[0].name})" if roofs else ""
    return f". Written by hand it would take {format_ratio(1 / row.by_hand)} as long{roof}"


def _winners(rows: Sequence[Fastest]) -> str:
    wins = Counter(method_of(row.first.case).plain.name for row in rows if row.distinguished)
    if len(rows) < 2 or not wins:
        return ""
    counts = ", ".join(f"{name} ({count})" for name, count in wins.most_common())
    clear = "Clear winners" if all(row.sure for row in rows if row.distinguished) else "Distinguished from the next"
    return f". {clear} over {len(rows)} problems and device counts: {counts}"


def _beside(standing: Baseline, row: Fastest) -> bool:
    """Whether a standing is of the same problem, in the same place."""
    one, other = standing.timing, row.first
    same = (one.environment, one.honest, one.case.devices) == (other.environment, other.honest, other.case.devices)
    return same and problem(one.case) == problem(other.case)


def _peer_sentences(found: Findings) -> list[str]:
    """For each other system: how long its fastest way takes beside JAX's fastest, over all that both did."""
    fastest: dict[tuple, Baseline] = {}
    for standing in found.standings:
        if standing.by_jax:
            timing = standing.timing
            of = (timing.environment, timing.case.engine, timing.honest, timing.case.devices, problem(timing.case))
            fastest[of] = min(fastest.get(of, standing), standing, key=lambda s: s.timing.median)
    systems: dict[tuple[str, str, bool], list[Baseline]] = {}
    for (environment, engine, honest, *_), standing in fastest.items():
        systems.setdefault((environment, engine, honest), []).append(standing)
    told = []
    for (environment, engine, honest), rows in systems.items():
        factors = sorted((row.by_jax[0], index) for index, row in enumerate(rows) if row.by_jax)
        (least, least_at), (most, most_at) = factors[0], factors[-1]
        middle = statistics.median(factor for factor, _ in factors)
        over = "one problem" if len(rows) == 1 else f"{len(rows)} problems and device counts"
        text = f"{engine} takes {format_ratio(middle)} as long as JAX, each its fastest way, in the median of {over}"
        if len(rows) > 1:
            text += f": from {format_ratio(least)} ({_problem_of(rows[least_at])}) to {format_ratio(most)} ({_problem_of(rows[most_at])})"
        told.append(f"{text}.{marks(found, environment, honest)}")
    return told


def _problem_of(standing: Baseline) -> str:
    case = standing.timing.case
    return f"{family_name(case)}, {size_name(case)}, {count_of(case.devices, 'device')}, {method_of(case).name}"


PEER_COLUMNS = ("problem", "devices", "system", "time", "JAX's fastest", "times as long")


def peer_rows(found: Findings) -> list[tuple[str, ...]]:
    """Every timing of another system beside JAX's fastest way to the same problem, under PEER_COLUMNS."""
    rows: list[tuple[str, ...]] = []
    for standing in found.standings:
        timing, rival = standing.timing, standing.rival
        if timing.case.engine != "jax":
            rows.append((
                f"{family_name(timing.case)} {size_name(timing.case)}{marks(found, timing.environment, timing.honest)}",
                str(timing.case.devices),
                method_of(timing.case).name,
                time_of(timing),
                f"{method_of(rival.case).name}, {format_duration(rival.median)}" if rival else "not measured",
                format_ratio(*standing.by_jax) if standing.by_jax else "",
            ))  # fmt: skip
    return rows


def _scaling_sentences(found: Findings) -> list[str]:
    """For each kind and family, on the most devices: the curve that is fastest there, beside all that reach it."""
    families: dict[tuple, list[Curve]] = {}
    for curve in found.curves:
        last = curve.points[-1]
        if not last.is_baseline and curve.case.engine == "jax":
            kind = (curve.kind, curve.environment, curve.baseline_devices)
            families.setdefault((*kind, *analysis.family(curve.case)), []).append(curve)
    headed = {(row.first.environment, row.first.case) for _, (row, *_) in heads(found)}
    told = []
    for of in families.values():
        most = max(curve.points[-1].devices for curve in of)
        rivals = [curve for curve in of if curve.points[-1].devices == most]
        largest = problem(max(rivals, key=lambda curve: volume(curve.case)).case)
        best = min((c for c in rivals if problem(c.case) == largest), key=lambda curve: curve.points[-1].seconds)
        # What a headline has said of the fastest is not said again.
        said = best.kind == "strong" and (best.environment, best.timings[-1].case) in headed
        parts = [*([] if said else [_speedup(best)]), *([_spread(rivals)] if len(rivals) > 1 else [])]
        if parts:
            text = (
                f"{best.kind.capitalize()} scaling of {family_name(best.case)} on {count_of(most, 'device')}: {'; '.join(parts)}."
            )
            told.append(text + marks(found, best.environment))
    return told


def _speedup(curve: Curve) -> str:
    last, weak = curve.points[-1], curve.kind == "weak"
    return (
        f"{'scaled speed-up' if weak else 'speed-up'} {format_ratio(last.speedup, last.speedup_low, last.speedup_high)}"
        f"{curve.relative}, efficiency {format_ratio(last.efficiency, last.efficiency_low, last.efficiency_high, sign='')}, "
        f"with {method_of(curve.case).name}, {describe_call(curve.case)}, the fastest there at {curve.size}"
        + (analysis.derived_words(curve.timings) if weak else "")
    )


def _spread(rivals: Sequence[Curve]) -> str:
    each = sorted(curve.points[-1].speedup for curve in rivals)
    middle = format_ratio(statistics.median(each))
    where = rivals[0].relative
    return f"the median speed-up of {len(rivals)} curves{where} is {middle}, from {format_ratio(each[0])} to {format_ratio(each[-1])}"


def basis(forecast: Forecast) -> str:
    """What was planned for a hardware, on how many devices, with what, and that it is no measurement."""
    records = forecast.records
    devices = sorted({record.case.devices for record in records})
    count = Counter(record.status for record in records)
    became = ", ".join([
        count_of(count["planned"], "case"), *(f"{count[each]} {each}" for each in ("skipped", "failed") if count[each])
    ])  # fmt: skip
    span = count_of(devices[0], "device") if len(devices) == 1 else f"{devices[0]:,} to {devices[-1]:,} devices"
    around = records[0].environment
    versions = around.get("versions") or {}
    tools = {name: version for name, version in around["hardware"].items() if name not in ("name", "digest")}
    tools |= {"JAX": versions["jax"]} if "jax" in versions else {}
    tools.pop("jax", None)
    by = f" with {', '.join(f'{name} {version}' for name, version in tools.items())}" if tools else ""
    return f"{became} on {span} of {around.get('device_kind')}, compiled{by}; times are predicted and not measured."


def scored(scores: PlanScores) -> list[str]:
    """How near the predictions for one hardware were, and of how many pairs of ways to a problem the order was right."""
    whole = scores.whole
    told = [
        f"Predicted against measured on {scores.hardware}: the median prediction is {format_ratio(whole.middle)} what was measured, "
        f"over {count_of(len(whole.pairs), 'case')}; the median error is {format_percentage(whole.error)}, the worst ratio "
        f"{format_ratio(whole.worst)}, and {format_percentage(whole.held)} of the measured times lie in their predicted 95 % interval."
    ]
    if scores.asked:
        told.append(
            f"Of {count_of(scores.asked, 'pair')} of ways to one problem whose measured times differ by more than a factor of "
            f"{format_number(APART)}, {scores.ordered} ({format_percentage(scores.ordered / scores.asked)}) were predicted in the right order."
        )
    return told


def _planned(found: Findings) -> list[str]:
    """Beside measurements: what else was planned, and how near predictions were."""
    told = [f"Planned for {each.title}: {basis(each)}" for each in found.forecasts]
    return [*told, *(sentence for scores in found.scores for sentence in scored(scores))]


def _planned_alone(found: Findings) -> list[str]:
    """Without measurements: what the plans say."""
    told = list[str]()
    for each in found.forecasts:
        told += [f"Planned for {each.title}, and nothing measured here: {basis(each)}", *forecast.answers(each)]
    return told


def unmeasured(found: Findings) -> list[str]:
    """How many cases failed and were skipped, and for which reasons, the most frequent first."""
    told = []
    for status in ("failed", "skipped"):
        given = (record.reason for record in found.records if record.status == status)
        reasons = Counter(f"{reason}: {REASONS.get(reason, '')}" if reason else "for no reason given" for reason in given)
        if reasons:
            counts = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
            told.append(f"{count_of(reasons.total(), 'case')} {status}: {counts}.")
    return told


def _trouble(found: Findings) -> list[str]:
    told = list[str]()
    told += [*unmeasured(found), *found.refusals]
    if count := len([t for t in found.timings if not t.honest]):
        told.append(
            f"{count_of(count, 'case')} ran oversubscribed, without a core for each device: marked, and never drawn as scaling."
        )
    if found.mixed:
        told.append(
            f"{len(found.environments)} environments stand in this folder ({', '.join(found.environments)}): "
            "they are kept apart, no curve and no comparison mixes them."
        )
    if found.missing:
        told.append(
            f"{count_of(len(found.missing), 'case')} of the study {'has' if len(found.missing) == 1 else 'have'} no record yet."
        )
    if found.damaged:
        lines = f"{len(found.damaged)} damaged {'line was' if len(found.damaged) == 1 else 'lines were'}"
        told.append(f"{lines} passed over, the first {found.damaged[0]}.")
    return told


def brief(found: Findings) -> tuple[list[tuple[str, ...]], list[str]]:
    """Rows and sentences at a glance: of many problems the largest of each family, and what no row says."""
    if not any(record.status == "ok" for record in found.records):
        return [], sentences(found)
    said = [sentence for part in (headlines, *_BOUGHT, _peer_sentences, _planned, _trouble) for sentence in part(found)]
    if len(found.fastest) <= _MOST_ROWS:
        return table_rows(found), said
    largest: dict[tuple, Fastest] = {}
    for row in found.fastest:
        first = row.first
        of = (first.environment, first.honest, first.case.devices, *analysis.family(first.case))
        largest[of] = max(largest.get(of, row), row, key=lambda row: volume(row.first.case))
    return table_rows(found, list(largest.values())), said


def _certainty(row: Fastest, factor: str) -> str:
    """Return a ratio with what is to be known of it."""
    if row.empty:
        return f"no more than an empty call ({format_duration(certainty.dispatch_floor(row.first))})"
    return factor if row.distinguished or row.second is None else f"not distinguished: {factor}"


def table_rows(source: Path | Findings, some: list[Fastest] | None = None) -> list[tuple[str, ...]]:
    """The fastest mode of each problem on each number of devices, or of some of them, under COLUMNS."""
    found = source if isinstance(source, Findings) else read(source)
    rows: list[tuple[str, ...]] = []
    for row in found.fastest if some is None else some:
        case, second = row.first.case, row.second
        factor = format_ratio(row.ratio, row.ratio_low, row.ratio_high) or "no other automatic mode"
        rows.append((
            f"{family_name(case)} {size_name(case)}{marks(found, row.first.environment, row.first.honest)}",
            str(case.devices),
            method_of(case).name,
            time_of(row.first),
            f"{method_of(second.case).name}, {format_duration(second.median)}" if second else "",
            _certainty(row, factor),
        ))  # fmt: skip
    return rows

"""Tests of `scaling lint`: the remarks on results folders that violate one rule each, and on a folder without faults."""

import argparse
import dataclasses
import io
import re

import numpy as np
import pytest
import scipy.stats
from rich.console import Console

from scaling.analysis import findings, lint
from scaling.analysis.ratios import interval_widening, trend
from scaling.cli import lint as lint_command
from scaling.core.case import to_dict
from scaling.core.record import to_line
from scaling.results.store import write_json
from tests.support import reports

MODES = (("jacfwd", "shard_map", 1), ("jacfwd", "shard_map", 2), ("jacfwd", "jit", 1), ("analytic", "jit", 1))
MACHINE_PEAK = {
    "workload": "ceiling",
    "target": "copy",
    "mode": "value",
    "sizes": {"k": 2**16, "terms": 1},
    "points": 8,
}


@pytest.fixture
def clean(make_record):
    """Return a function that makes a record without faults, with 30 independent samples; its arguments replace fields."""

    def make(environment=None, **fields):
        generator = np.random.default_rng(fields.get("replicate", 0))
        samples = list(1e-3 * (1 + 0.002 * generator.normal(size=30)))
        defaults = {"error": 1e-7, "tolerance": 1e-6, "floor_seconds": 1e-5, "turns": [10, 10, 10], "stop_reason": "width",
                 "flops": 1e3, "hbm_bytes": 1e3, "argument_bytes": 10, "output_bytes": 10, "seconds": samples}  # fmt: skip
        return make_record(environment=environment, **defaults | {"points": 8} | fields)

    return make


@pytest.fixture
def study(clean):
    """Return a function that makes a study without faults: three processes per case, with baselines and machine peaks."""

    def make(**fields):
        records = [
            clean(**{"mode": m, "api": a, "devices": d, "replicate": i} | fields)
            for m, a, d in MODES
            for i in range(3)
        ]
        devices = {record.case.devices for record in records}
        return records + [clean(**fields | MACHINE_PEAK | {"devices": d}) for d in devices]

    return make


@pytest.fixture
def remarks_on(tmp_path):
    """Return a function that writes records to a folder and maps the rule of each lint remark on it to the remark."""

    def lint_folder(records, scaling="strong", missing=(), line=""):
        lines = "".join(f"{to_line(record)}\n" for record in records) + line
        (tmp_path / "one.jsonl").write_text(lines)
        cases = [{"key": case.key, "case": to_dict(case)} for case in missing]
        write_json(tmp_path / "study.json", {"study": "made up", "scaling": scaling.split(), "cases": cases})
        return {remark.rule: remark for remark in lint.lint_findings(findings.read(tmp_path))}

    return lint_folder


def test_study_without_faults_is_publishable_as_it_is(study, remarks_on):
    remarks = remarks_on(study())
    assert remarks == {} and lint.format_verdict(list(remarks.values())) == "publishable as it is"


def change(records, at, **fields):
    """Return the records with fields of the record at index `at` replaced."""
    return [*records[:at], dataclasses.replace(records[at], **fields), *records[at + 1 :]]


SHIFTED = [1e-3 * (1 + (index >= 15) * 0.05 + 1e-4 * (index * 7 % 5)) for index in range(30)]
WALK = [1e-3 * (1 + 0.08 * (index // 10 % 2) + 1e-4 * (index * 7 % 5)) for index in range(60)]
FAULTS = [  # rule, severity, study with that fault from (study, clean), words of the remark
    ("unverified answers", "error", lambda s, _: change(s(), 0, error=None), "error None, tolerance 1e-06"),
    ("unverified answers", "error", lambda s, _: change(s(), 4, error=2e-6), "error 2e-06, tolerance 1e-06"),
    ("unverified answers", "error", lambda s, _: change(s(), 4, tolerance=None), "tolerance None"),
    ("wrong answers", "error", lambda s, g: [*s(), g(status="failed", reason="wrong_answer", points=9, text="at 3")], "at 3"),
    ("mixed environments", "error", lambda s, _: s() + s(digest="other", environment={"versions": {"jax": "0.11.0"}}),
     "linear: 2 environments that differ in jax (0.10.2, 0.11.0)"),
    ("oversubscribed", "error", lambda s, _: s() + s(points=9, devices=2, environment={"cores": [0]}), "2 devices, 1 core"),
    ("oversubscribed", "error", lambda s, _: s() + s(points=9, devices=1, environment={"cores": None}), "1 device, no core"),
    ("no baseline: the same", "error", lambda s, _: [r for r in s() if r.case.devices == 2 or r.case.api == "jit"], "jacfwd"),
    ("too few samples", "error", lambda s, _: change(s(), 1, seconds=[1e-3] * 6, turns=[6]), ": 6"),
    ("failed cases", "warning", lambda s, g: [*s(), g(status="failed", reason="timeout", points=9, text="600 s")], "out: 600 s"),
    ("times under 10x the overhead of a call", "warning", lambda s, _: change(s(), 2, floor_seconds=2e-4),
     "1.00 ms, an empty call 200 µs"),
    ("intervals wider", "warning", lambda s, _: change(s(), 2, seconds=[2e-3] * 30, stop_reason="most"), "stopped by most"),
    ("load of other processes, or throttling", "warning",
     lambda s, _: change(s(), 2, marked={"foreign_load": [0, 1], "throttled": [1]}),
     "22 % of its samples, load of other processes and throttled"),
    ("devices that are hardware threads", "warning", lambda s, _: change(s(), 2, before={"siblings": [[0, 4]]}),
      "some on the same core"),
    ("trend within", "warning", lambda s, _: change(s(), 2, seconds=SHIFTED), "+4.9 % from the first third to the last"),
    ("no baseline: a plain jit", "warning", lambda s, _: [r for r in s() if r.case.api != "jit" or r.case.mode == "analytic"],
     "linear o=3 p=5 points=8"),
]  # fmt: skip


@pytest.mark.parametrize("rule, severity, faulty, words", FAULTS)
def test_each_fault_raises_only_its_remark(study, clean, remarks_on, rule, severity, faulty, words):
    remarks = remarks_on(faulty(study, clean)).values()
    (remark,) = remarks
    assert remark.rule.startswith(rule) and remark.severity == severity and words in remark.text, remark
    assert remark.count and remark.fix


def test_failure_in_an_older_environment_is_a_fault_only_until_the_case_succeeds(clean, remarks_on):
    old, new = (
        {"digest": name, "started_at": f"2026-01-0{day}T00:00:00+00:00"}
        for day, name in enumerate(("old", "new"), 1)
    )
    failed = clean(status="failed", reason="timeout", text="600 s", **old)
    assert "failed cases" not in remarks_on([failed, clean(**new)])
    text = remarks_on([failed, clean(**new, points=9)])["failed cases"].text
    assert text.endswith("devices=1 [environment old]: timeout: 600 s")


BELOW_THRESHOLDS = [
    {"marked": {"throttled": [1]}, "turns": [25, 5]},
    {"floor_seconds": 9e-5},
    {"blocks": {"chunk": 2}},
]


@pytest.mark.parametrize("fields", BELOW_THRESHOLDS)
def test_faults_below_their_thresholds_raise_no_remark(study, remarks_on, fields):
    assert remarks_on([dataclasses.replace(record, **fields) for record in study()]) == {}


def test_rules_are_listed_by_severity():
    severities = [severity for severity, *_ in lint.RULES]
    assert severities == sorted(severities, key=[lint.ERROR, lint.WARNING].index)


def test_one_device_needs_no_speedup_baseline(study, remarks_on):
    on_one = [r for r in study() if r.case.devices == 1]
    assert remarks_on([r for r in on_one if r.case.api == "shard_map" or r.case.mode != "jacfwd"]) == {}


@pytest.mark.parametrize(
    "reason, missed", [("too_large", False), ("out_of_memory", False), ("not_defined", True)]
)
def test_baseline_too_large_for_one_device_is_not_missing(study, clean, remarks_on, reason, missed):
    records = [r for r in study() if r.case.devices == 2 or r.case.api == "jit"]
    on_two = next(r for r in records if r.case.devices == 2)
    case = dataclasses.replace(on_two.case, devices=1)
    unfit = dataclasses.replace(on_two, case=case, status="skipped", reason=reason, seconds=[])
    assert any(rule.startswith("no baseline: the same") for rule in remarks_on([*records, unfit])) is missed


def test_single_process_is_reported(study, remarks_on):
    one_process = [record for record in study() if not record.replicate]
    remarks = remarks_on(one_process)
    (remark,) = remarks.values()
    assert (remark.rule, remark.severity, remark.count) == ("measured in one process", "warning", 4)


def test_printed_problems_fit_a_terminal_and_have_one_line_each_in_a_pipe(study, remarks_on, tmp_path):
    remarks_on([record for record in study() if not record.replicate])
    for is_terminal in (True, False):
        output = io.StringIO()
        console = Console(file=output, width=80, force_terminal=is_terminal, color_system=None)
        lint_command.execute(argparse.Namespace(folder=str(tmp_path), strict=False), console)
        lines = output.getvalue().splitlines()
        assert lines[0].startswith("warning measured in one process (4): ") and "        fix: " in lines[-2]
        assert all(len(line) <= 80 for line in lines) if is_terminal else len(lines) == 3


def test_missing_records_and_damaged_lines_are_reported(study, clean, remarks_on):
    remarks = remarks_on(study(), missing=[clean(points=99).case], line='{"half')
    assert set(remarks) == {"missing cases", "damaged lines"}
    assert "points=99" in remarks["missing cases"].text
    assert "one.jsonl:" in remarks["damaged lines"].text
    reasons = ("too_large", "error", "error")
    failed = [clean(status="failed", reason=r, seconds=[], replicate=i) for i, r in enumerate(reasons)]
    assert remarks_on(failed)["nothing measured"].text == "made up"
    (remark,) = remarks_on([]).values()
    assert (remark.rule, remark.severity) == ("nothing measured", "error")
    assert remark.text == "made up"


def test_weak_scaling_requires_constant_work(study, clean, remarks_on):
    two_devices = [clean(devices=2, points=16, replicate=i) for i in range(3)]
    one_device = [r for r in study() if r.case.devices == 1]
    peak = clean(**MACHINE_PEAK | {"devices": 2})
    assert not [rule for rule in remarks_on([*one_device, *two_devices, peak], "weak") if "weak" in rule]
    more_work = [dataclasses.replace(record, flops=2e3) for record in two_devices]
    remark = remarks_on([*one_device, *more_work, peak], "weak")["weak scaling that is not weak"]
    assert "Not weak" not in remark.text
    assert remark.severity == "error" and "are 1000 on 1 and 2000 on 2 devices" in remark.text


def test_curves_that_strong_and_weak_grids_form_together_need_no_baseline_of_their_own(clean, remarks_on):
    """16 points on 2 and 4 devices are 8 and 4 points per device, of which the other grid starts on one device."""
    strong = {(devices, points) for devices in (1, 2, 4) for points in (4, 8)}
    weak = {(devices, points * devices) for devices in (1, 2, 4) for points in (4, 8)}
    records = [clean(devices=d, points=p) for d, p in sorted(strong | weak)]
    remarks = remarks_on([*records, *(clean(points=p, api="jit") for p in (4, 8))], "strong weak")
    assert not [rule for rule in remarks if rule.startswith("no baseline")]
    without = [record for record in records if record.case.devices > 1]
    remarks = remarks_on(without, "strong weak")
    assert [remark.count for rule, remark in remarks.items() if rule.startswith("no baseline")] == [6, 3]


DRAWS = {
    "even": lambda g, n: 1 + 0.05 * g.normal(size=n),
    "skewed": lambda g, n: np.exp(0.5 * g.normal(size=n)),
    "with spikes": lambda g, n: np.exp(0.01 * g.normal(size=n)) * np.where(g.random(n) < 0.05, 2.5, 1.0),
    "two levels": lambda g, n: np.where(g.random(n) < 0.5, 1.0, 1.3) + 0.01 * g.normal(size=n),
    "coarse clock": lambda g, n: np.round(1 + 0.05 * g.normal(size=n), 1),
}


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("count", [7, 20, 200])
def test_independent_samples_rarely_raise_remarks(draw, count):
    generator = np.random.default_rng(count)
    series = [DRAWS[draw](generator, count) for _ in range(1000)]
    assert sum(trend(samples) is not None for samples in series) <= 8
    assert sum(interval_widening(samples) is not None for samples in series) <= 6


def test_trend_has_the_size_and_sign_of_the_drift():
    generator = np.random.default_rng(0)
    for drift in (0.1, -0.1):
        trends = [
            trend(1 + drift * np.arange(60) / 60 + 0.02 * generator.normal(size=60)) for _ in range(200)
        ]
        detected = [trend for trend in trends if trend is not None]
        assert len(detected) >= 190 and np.median(detected) == pytest.approx(drift * 2 / 3, rel=0.2)


@pytest.mark.parametrize("count", [3, 7, 30])
def test_a_trend_is_significant_if_that_of_scipy_is(count):
    generator = np.random.default_rng(count)
    for _ in range(300):
        drift = np.arange(count) * generator.choice([0, 0.02, 0.1])
        samples = np.round(10 + drift + generator.normal(size=count), 1).tolist()
        if trend(samples) is not None:
            assert scipy.stats.spearmanr(samples, range(count)).pvalue <= 1e-3
        elif np.median(samples[: count // 3]) != np.median(samples[-(count // 3) :]):
            assert scipy.stats.spearmanr(samples, range(count)).pvalue > 1e-3


def test_interval_widening_of_an_autoregressive_series_matches_theory():
    generator, widenings = np.random.default_rng(0), []
    for _ in range(200):
        samples = [0.0]
        for _ in range(199):
            samples.append(0.8 * samples[-1] + 0.6 * generator.normal())
        widenings.append(interval_widening(samples))
    assert None not in widenings and np.median(widenings) == pytest.approx(3.0, rel=0.15)


@pytest.mark.parametrize("samples", [[], [1.0], [1.0] * 9, [1.0, 2.0]])
def test_constant_or_short_series_have_no_trend_and_no_widening(samples):
    assert trend(samples) is None and interval_widening(samples) is None


def test_exit_status_of_lint_depends_on_errors_and_strict(scaling_command, study, remarks_on, tmp_path):
    for records, options, status, verdict in (
        (study(), [], 0, "publishable as it is"),
        (change(study(), 2, seconds=SHIFTED), [], 0, "0 errors, 1 warning"),
        (change(study(), 2, seconds=SHIFTED), ["--strict"], 1, "0 errors, 1 warning"),
        (change(change(study(), 2, seconds=SHIFTED), 0, error=None), [], 1, "1 error, 1 warning"),
    ):
        remarks_on(records)
        result = scaling_command(["lint", str(tmp_path), *options])
        assert (result.returncode, result.stdout.splitlines()[-1]) == (status, verdict), (
            result.stdout + result.stderr
        )
    words = [line.split()[0] for line in result.stdout.splitlines()[:-1]]
    assert words == ["error", "fix:", "warning", "fix:"]
    result = scaling_command(["lint", "nowhere"])
    assert result.returncode == 2 and result.stderr.startswith("scaling: no results in 'nowhere'")


def test_markup_in_names_is_shown_as_text(scaling_command, study, remarks_on, tmp_path):
    remarks_on(study(workload="[red]<b>mine</b>", tolerance=None))
    assert "[red]<b>mine</b>" in scaling_command(["lint", str(tmp_path)]).stdout
    page = reports.write_report(tmp_path).read_text()
    assert "&lt;b&gt;mine" in page and "<b>mine" not in page


def test_report_contains_the_verdict_and_the_fix_of_each_remark(study, remarks_on, tmp_path):
    (remark,) = remarks_on(study(tolerance=None)).values()
    page = reports.write_report(tmp_path).read_text()
    (section,) = re.findall(r"<h2>Would a reviewer accept it\?</h2>.*?</table>", page, re.DOTALL)
    for words in ("1 error, 0 warnings", remark.rule, remark.fix, "tolerance None"):
        assert words in section
    remarks_on(study())
    assert "publishable as it is" in reports.write_report(tmp_path).read_text()


def test_reported_interval_is_widened_for_autocorrelation(study, clean, remarks_on, tmp_path):
    one_process = [record for record in study() if not record.replicate]
    shuffled = [WALK[index * 7 % 60] for index in range(60)]  # the samples of WALK in another order
    widths = []
    for seconds in (WALK, shuffled):
        remarks_on(change(one_process, 0, seconds=seconds, turns=[60]))
        (timing,) = [t for t in findings.read(tmp_path).timings if t.records[0].seconds == seconds]
        widths.append(timing.estimate.high - timing.estimate.low)
    assert widths[0] > 1.5 * widths[1]

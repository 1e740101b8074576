"""What a strict reviewer says of folders that break one rule each, and of one that breaks none."""

import dataclasses
import re

import numpy as np
import pytest

from scaling.analysis import autocorrelation, findings, lint
from scaling.core.case import to_dict
from scaling.core.record import to_line
from scaling.core.store import write_json
from scaling.report import write_report

COMMITTED = {"commit": "c" * 40, "dirty": False}
MODES = (("jacfwd", "shard_map", 1), ("jacfwd", "shard_map", 2), ("jacfwd", "jit", 1), ("analytic", "jit", 1))
CEILING = {
    "workload": "ceiling",
    "target": "copy",
    "mode": "value",
    "sizes": {"k": 2**16, "terms": 1},
    "points": 8,
}


@pytest.fixture
def good(make_record):
    """A record that nobody can object to: 30 independent samples, checked, in a clean place; fields may differ."""

    def make(environment=None, **fields):
        draw = np.random.default_rng(fields.get("replicate", 0))
        samples = list(1e-3 * (1 + 0.002 * draw.normal(size=30)))
        plain = {"error": 1e-7, "tolerance": 1e-6, "floor_seconds": 1e-5, "turns": [10, 10, 10], "stop_reason": "width",
                 "flops": 1e3, "hbm_bytes": 1e3, "argument_bytes": 10, "output_bytes": 10, "seconds": samples}  # fmt: skip
        return make_record(environment=COMMITTED | (environment or {}), **plain | {"points": 8} | fields)

    return make


@pytest.fixture
def study(good):
    """A whole study of such records, three processes a case, with baselines and a ceiling; every record may be changed."""

    def make(**fields):
        cases = [
            good(**{"mode": m, "api": a, "devices": d, "replicate": i} | fields)
            for m, a, d in MODES
            for i in range(3)
        ]
        devices = {record.case.devices for record in cases}
        return cases + [good(**fields | CEILING | {"devices": d}) for d in devices]

    return make


@pytest.fixture
def told(tmp_path):
    """The remarks on a folder with these records, by the rule's first words."""

    def tell(records, scaling="strong", missing=(), line=""):
        lines = "".join(f"{to_line(record)}\n" for record in records) + line
        (tmp_path / "one.jsonl").write_text(lines)
        cases = [{"key": case.key, "case": to_dict(case)} for case in missing]
        write_json(tmp_path / "study.json", {"study": "made up", "scaling": [scaling], "cases": cases})
        return {remark.rule: remark for remark in lint.lint_findings(findings.read(tmp_path))}

    return tell


def test_a_study_without_fault_is_publishable_as_it_is(study, told):
    found = told(study())
    assert found == {} and lint.verdict(list(found.values())) == "publishable as it is"


def swap(records, at, **fields):
    """The records with some fields of one of them changed."""
    return [*records[:at], dataclasses.replace(records[at], **fields), *records[at + 1 :]]


SHIFTED = [1e-3 * (1 + (place >= 15) * 0.05 + 1e-4 * (place * 7 % 5)) for place in range(30)]
WALK = [1e-3 * (1 + 0.08 * (place // 10 % 2) + 1e-4 * (place * 7 % 5)) for place in range(60)]
FAULTS = [  # the rule, how bad it is, a study with that fault from (a whole study, a record), what is said of it
    ("unverified answers", "error", lambda s, _: swap(s(), 0, error=None), "error None, tolerance 1e-06"),
    ("unverified answers", "error", lambda s, _: swap(s(), 4, error=2e-6), "error 2e-06, tolerance 1e-06"),
    ("unverified answers", "error", lambda s, _: swap(s(), 4, tolerance=None), "tolerance None"),
    ("wrong answers", "error", lambda s, g: [*s(), g(status="failed", reason="wrong_answer", points=9, text="at 3")], "at 3"),
    ("mixed environments", "error", lambda s, _: s() + s(digest="other", environment={"versions": {"jax": "0.11.0"}}),
     "linear: 2 environments that differ in jax (0.10.2, 0.11.0)"),
    ("oversubscribed", "error", lambda s, _: s() + s(points=9, devices=2, environment={"cores": [0]}), "2 devices, 1 core"),
    ("oversubscribed", "error", lambda s, _: s() + s(points=9, devices=1, environment={"cores": None}), "1 device, no core"),
    ("no baseline: the same", "error", lambda s, _: [r for r in s() if r.case.devices == 2 or r.case.api == "jit"], "jacfwd"),
    ("too few samples", "error", lambda s, _: swap(s(), 1, seconds=[1e-3] * 6, turns=[6]), ": 6"),
    ("failed cases", "warning", lambda s, g: [*s(), g(status="failed", reason="timeout", points=9, text="600 s")], "out: 600 s"),
    ("times under ten floors", "warning", lambda s, _: swap(s(), 2, floor_seconds=2e-4), "1.00 ms, an empty call 200 µs"),
    ("intervals wider", "warning", lambda s, _: swap(s(), 2, seconds=[2e-3] * 30, stop_reason="most"), "stopped by most"),
    ("foreign load", "warning", lambda s, _: swap(s(), 2, marked={"foreign_load": [0, 1], "throttled": [1]}),
     "22 % of its samples, foreign load and throttled"),
    ("trend within", "warning", lambda s, _: swap(s(), 2, seconds=SHIFTED), "+4.9% from the first third to the last"),
    ("padding of more", "warning", lambda s, _: swap(s(), 3, padding=0.2), "devices=2: 20 %"),
    ("chunk=auto: other blocks", "warning", lambda s, _: swap(swap(s(), 0, blocks={"chunk": 4}), 1, blocks={"chunk": 2}),
     "4 seeds and all points at a time; 2 seeds and all points at a time"),
    ("no baseline: a plain jit", "warning", lambda s, _: [r for r in s() if r.case.api != "jit" or r.case.mode == "analytic"],
     "linear o=3 p=5 points=8"),
    ("code that is not committed", "warning", lambda s, _: s(environment={"dirty": True}), "cccccccccccc with changes"),
    ("code that is not committed", "warning", lambda s, _: s(environment={"commit": None}), "eeeeeeeeeeee: no commit"),
    ("skipped cases", "note", lambda s, g: [*s(), *(g(status="skipped", reason="too_large", points=p) for p in (10, 12))],
     "needs more memory than there is (2 times)"),
    ("no measured ceiling", "note", lambda s, _: [r for r in s() if r.case.kind == "case"], "points=8"),
    ("no derivative by hand", "note", lambda s, _: [r for r in s() if r.case.mode != "analytic"], "points=8"),
]  # fmt: skip


@pytest.mark.parametrize("rule, severity, faulty, words", FAULTS)
def test_each_fault_breaks_its_rule_alone(study, good, told, rule, severity, faulty, words):
    found = told(faulty(study, good)).values()
    (remark,) = [one for one in found if one.severity != "note" or severity == "note"]
    assert remark.rule.startswith(rule) and remark.severity == severity and words in remark.text, remark
    assert remark.count and remark.fix


A_LITTLE = [
    {"marked": {"throttled": [1]}, "turns": [25, 5]},
    {"floor_seconds": 9e-5},
    {"padding": 0.1},
    {"blocks": {"chunk": 2}},
]


@pytest.mark.parametrize("fields", A_LITTLE)
def test_a_little_of_a_fault_is_none(study, told, fields):
    assert told([dataclasses.replace(record, **fields) for record in study()]) == {}


def test_on_one_device_there_is_no_speed_up_and_no_baseline_to_miss(study, told):
    assert (
        told(
            [
                r
                for r in study()
                if r.case.devices == 1 and (r.case.api == "shard_map" or r.case.mode != "jacfwd")
            ]
        )
        == {}
    )


@pytest.mark.parametrize(
    "reason, missed", [("too_large", False), ("out_of_memory", False), ("not_defined", True)]
)
def test_what_does_not_fit_on_one_device_misses_no_baseline_there(study, good, told, reason, missed):
    more = [r for r in study() if r.case.devices == 2 or r.case.api == "jit"]
    gone = dataclasses.replace(
        next(r for r in more if r.case.devices == 2), status="skipped", reason=reason, seconds=[]
    )
    gone = dataclasses.replace(gone, case=dataclasses.replace(gone.case, devices=1))
    assert any(rule.startswith("no baseline: the same") for rule in told([*more, gone])) is missed


def test_compilations_of_too_few_samples_each_leave_no_interval(study, told):
    alone = [record for record in study() if not record.replicate]
    found = told(swap(alone, 0, compilations=[{"samples": 5}] * 5))
    assert [(r.severity, r.text[-10:]) for rule, r in found.items() if "too few" in rule] == [
        ("error", "30 samples")
    ]


def test_one_process_is_no_repeat_and_its_autocorrelation_counts(study, told):
    alone = [record for record in study() if not record.replicate]
    found = told(alone)
    assert [(r.rule, r.severity, r.count) for r in found.values()] == [("one process only", "warning", 4)]
    found = told(swap(alone, 0, seconds=WALK, turns=[60]))
    assert any(rule.startswith("autocorrelation") for rule in found)
    found = told(
        swap(study(), 0, seconds=WALK, turns=[60])
    )  # an interval between processes does not rest on it
    assert not any(rule.startswith("autocorrelation") for rule in found)


def test_what_is_not_there_is_named(study, good, told):
    found = told(study(), missing=[good(points=99).case], line='{"half')
    assert set(found) == {"cases without a record", "damaged lines"}
    assert "points=99" in found["cases without a record"].text and "one.jsonl:" in found["damaged lines"].text
    (remark,) = told([]).values()
    assert (remark.rule, remark.severity) == ("nothing measured", "error")


def test_weak_scaling_must_be_weak_and_be_there(study, good, told):
    grown = [good(devices=2, points=16, replicate=i) for i in range(3)]
    weak = [r for r in study() if r.case.devices == 1]
    ceiling = good(**CEILING | {"devices": 2})
    assert not [rule for rule in told([*weak, *grown, ceiling], "weak") if "weak" in rule]
    heavy = [dataclasses.replace(record, flops=2e3) for record in grown]
    remark = told([*weak, *heavy, ceiling], "weak")["weak scaling that is not weak"]
    assert remark.severity == "error" and "100.0% more" in remark.text
    assert "several numbers of devices" in told(weak, "weak")["weak scaling that is not weak"].text


def test_a_further_compilation_with_a_level_of_its_own_is_no_trend(study, told):
    twice = swap(study(), 2, seconds=SHIFTED)
    assert "trend within a process" in told(twice)
    assert "trend within a process" not in told(swap(twice, 2, compilations=[{"samples": 15}]))


DRAWS = {
    "even": lambda g, n: 1 + 0.05 * g.normal(size=n),
    "skewed": lambda g, n: np.exp(0.5 * g.normal(size=n)),
    "with spikes": lambda g, n: np.exp(0.01 * g.normal(size=n)) * np.where(g.random(n) < 0.05, 2.5, 1.0),
    "of two levels": lambda g, n: np.where(g.random(n) < 0.5, 1.0, 1.3) + 0.01 * g.normal(size=n),
    "of a coarse clock": lambda g, n: np.round(1 + 0.05 * g.normal(size=n), 1),
}


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("count", [7, 20, 200])
def test_independent_samples_raise_hardly_any_remark(draw, count):
    generator = np.random.default_rng(count)
    runs = [DRAWS[draw](generator, count) for _ in range(1000)]
    assert sum(autocorrelation.trend(run) is not None for run in runs) <= 8
    assert sum(autocorrelation.interval_widening(run) is not None for run in runs) <= 6


def test_a_drift_is_told_with_its_size_and_sign():
    generator = np.random.default_rng(0)
    for drift in (0.1, -0.1):
        found = [
            autocorrelation.trend(1 + drift * np.arange(60) / 60 + 0.02 * generator.normal(size=60))
            for _ in range(200)
        ]
        sure = [change for change in found if change is not None]
        assert len(sure) >= 190 and np.median(sure) == pytest.approx(drift * 2 / 3, rel=0.2)


def test_samples_that_resemble_the_one_before_widen_as_a_first_order_process_does():
    generator, found = np.random.default_rng(0), []
    for _ in range(200):
        steps = [0.0]
        for _ in range(199):
            steps.append(0.8 * steps[-1] + 0.6 * generator.normal())
        found.append(autocorrelation.interval_widening(steps))
    assert None not in found and np.median(found) == pytest.approx(3.0, rel=0.15)


@pytest.mark.parametrize("samples", [[], [1.0], [1.0] * 9, [1.0, 2.0]])
def test_a_series_without_variation_or_length_shows_nothing(samples):
    assert autocorrelation.trend(samples) is None and autocorrelation.interval_widening(samples) is None


def test_the_command_says_by_its_exit_status_whether_there_are_errors(scaling_command, study, told, tmp_path):
    for records, words, status, verdict in (
        (study(), [], 0, "publishable as it is"),
        (study(environment={"dirty": True}), [], 0, "0 errors, 1 warning"),
        (study(environment={"dirty": True}), ["--strict"], 1, "0 errors, 1 warning"),
        (swap(study(environment={"dirty": True}), 0, error=None), [], 1, "1 error, 1 warning"),
    ):
        told(records)
        done = scaling_command(["lint", str(tmp_path), *words])
        assert (done.returncode, done.stdout.splitlines()[-1]) == (status, verdict), done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[:-1]] == [
        "error",
        "fix:",
        "warning",
        "fix:",
    ]
    done = scaling_command(["lint", "nowhere"])
    assert done.returncode == 2 and done.stderr.startswith("scaling: no results in 'nowhere'")


def test_markup_in_a_name_is_shown_as_text(scaling_command, study, told, tmp_path):
    told(study(workload="[red]<b>mine</b>", tolerance=None))
    assert "[red]<b>mine</b>" in scaling_command(["lint", str(tmp_path)]).stdout
    page = write_report.write_report(tmp_path).read_text()
    assert "&lt;b&gt;mine" in page and "<b>mine" not in page


def test_the_report_carries_the_verdict_and_what_mends_it(study, told, tmp_path):
    (remark,) = told(study(tolerance=None)).values()
    section = re.search(
        r"<h2>Would a reviewer accept it\?</h2>.*?</table>",
        write_report.write_report(tmp_path).read_text(),
        re.DOTALL,
    )
    assert section and all(
        word in section[0] for word in ("1 error, 0 warnings", remark.rule, remark.fix, "tolerance None")
    )
    told(study())
    assert "publishable as it is" in write_report.write_report(tmp_path).read_text()


def test_the_interval_that_is_drawn_is_as_wide_as_autocorrelation_asks_for(study, good, told, tmp_path):
    alone = [record for record in study() if not record.replicate]
    mixed = [WALK[place * 7 % 60] for place in range(60)]  # the same samples in another order
    widths = []
    for seconds in (WALK, mixed):
        told(swap(alone, 0, seconds=seconds, turns=[60]))
        (timing,) = [t for t in findings.read(tmp_path).timings if t.records[0].seconds == seconds]
        widths.append(timing.interval[1] - timing.interval[0])
    assert widths[0] > 1.5 * widths[1]

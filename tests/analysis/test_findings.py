"""Tests of findings.py: the results computed from a whole results folder."""

import pytest

from scaling.analysis.findings import read
from scaling.core.record import Writer
from scaling.results.store import write_json

STEADY = 9  # samples


@pytest.fixture
def findings_of(tmp_path, make_record):
    """Return a function that writes a study of records with the given fields and returns its findings."""

    def write_and_read(rows, scaling=("strong",)):
        writer = Writer(tmp_path)
        for row in rows:
            writer.append(
                make_record(
                    **{"flops": 1e6, "compulsory_bytes": 1000} | row | {"seconds": [row["seconds"]] * STEADY}
                )
            )
        write_json(tmp_path / "study.json", {"study": "made up", "scaling": list(scaling)})
        return read(tmp_path)

    return write_and_read


def test_folder_yields_curves_and_exponents(findings_of):
    counts, sizes = (1, 2, 4, 8), (4, 8, 16)
    study = findings_of(
        {"devices": d, "points": 24, "sizes": {"p": p, "o": 3}, "seconds": p**2 * (0.1 + 0.9 / d)}
        for d in counts
        for p in sizes
    )
    assert [[point.devices for point in curve.points] for curve in study.curves] == [list(counts)] * 3
    assert [e.value for sweep in study.size_sweeps for e in sweep.exponents.values()] == pytest.approx(
        [2] * len(counts)
    )


@pytest.mark.parametrize("grows", [False, True])
def test_rejected_weak_series_has_no_curve(findings_of, grows):
    rows = [
        {"devices": d, "points": 6 * d, "seconds": 1 + 0.1 * d, "flops": 1e6 * (d if grows else 1)}
        for d in (1, 2, 4)
    ]
    study = findings_of(rows, ["weak"])
    kinds = [curve.kind for curve in study.curves]
    assert (kinds, len(study.weak_refusals)) == (([], 1) if grows else (["weak"], 0))


def test_two_sizes_have_no_exponent(findings_of):
    study = findings_of(
        {"devices": d, "points": 24, "sizes": {"p": p, "o": 3}, "seconds": p / d}
        for d in (1, 2)
        for p in (4, 8)
    )
    assert not any(sweep.exponents for sweep in study.size_sweeps)


def test_one_point_that_ran_out_of_memory_on_two_devices_belongs_to_no_weak_curve(findings_of):
    """A folder may contain a problem with one point beside a weak curve whose points are proportional to the devices."""
    weak = [{"devices": d, "points": 6 * d, "seconds": 1.0} for d in (2, 4)]
    failed = {"points": 1, "devices": 2, "split": "seeds", "status": "failed", "reason": "out_of_memory"}
    study = findings_of([*weak, failed | {"seconds": 1.0}], ["weak"])
    (curve,) = study.curves
    assert study.too_large_on(curve) is None


@pytest.mark.parametrize(
    "content, kinds",
    [
        ({"scaling": "weak"}, {"weak"}),
        ({"scaling": 5, "cases": 5}, {"strong"}),
        ({"scaling": {"weak": 1}, "cases": {"a": 1}}, {"strong"}),
        (
            {"scaling": [["weak"], 3, "weak"], "cases": [1, {"key": ["x"]}, {"key": {}, "case": 3}]},
            {"strong"},
        ),
        ({"scaling": True, "cases": "abc", "study": [1]}, {"strong"}),
    ],
)
def test_damaged_study_file_does_not_affect_the_records(findings_of, tmp_path, content, kinds):
    findings_of({"devices": d, "points": 6 * d, "seconds": 1.0} for d in (1, 2))
    write_json(tmp_path / "study.json", content)
    study = read(tmp_path)
    assert {curve.kind for curve in study.curves} == kinds and len(study.records) == 2


def test_a_study_file_with_a_case_that_cannot_be_read_has_a_problem(findings_of, tmp_path):
    (timing,) = findings_of([{"seconds": 1.0}]).timings
    known = {"key": timing.case.key, "case": {}}
    write_json(tmp_path / "study.json", {"cases": [known, known, {"key": "newer", "case": {"field": 1}}, 3]})
    study = read(tmp_path)
    assert study.missing == [] and study.study.problem.startswith("study.json cannot be read")
    write_json(tmp_path / "study.json", {"cases": [known]})
    assert read(tmp_path).study.problem == ""

"""What findings.py makes of a whole folder."""

import pytest

from scaling.analysis.findings import read
from scaling.core.store import Writer, write_json

STEADY = 9  # samples


@pytest.fixture
def read_back(tmp_path, make_record):
    """The findings of a folder of records, from their fields, of a study that asks for these kinds of scaling."""

    def call(rows, scaling=("strong",)):
        writer = Writer(tmp_path)
        for row in rows:
            writer.append(
                make_record(
                    **{"flops": 1e6, "compulsory_bytes": 1000} | row | {"seconds": [row["seconds"]] * STEADY}
                )
            )
        write_json(tmp_path / "study.json", {"study": "made up", "scaling": list(scaling)})
        return read(tmp_path)

    return call


def test_laws_losses_and_exponents_follow_from_a_folder(read_back):
    counts, sizes = (1, 2, 4, 8), (4, 8, 16)
    found = read_back(
        {"devices": d, "points": 24, "sizes": {"p": p, "o": 3}, "seconds": p**2 * (0.1 + 0.9 / d)}
        for d in counts
        for p in sizes
    )
    assert [curve for curve, _ in found.scaling_fits] == [
        curve for curve, _ in found.efficiency_breakdowns
    ] == found.curves and len(found.curves) == 3
    for _, fitted in found.scaling_fits:
        assert next(law for law in fitted if law.best).parts["serial"].value == pytest.approx(0.1, abs=1e-4)
    assert [[loss.devices for loss in lost] for _, lost in found.efficiency_breakdowns] == [[2, 4, 8]] * 3
    assert [growth.exponent.value for growth in found.size_exponents] == pytest.approx([2] * len(counts))


@pytest.mark.parametrize("grows", [False, True])
def test_a_series_that_is_refused_the_word_weak_has_no_law_and_no_loss_either(read_back, grows):
    rows = [
        {"devices": d, "points": 6 * d, "seconds": 1 + 0.1 * d, "flops": 1e6 * (d if grows else 1)}
        for d in (1, 2, 4)
    ]
    found = read_back(rows, ["weak"])
    told = [curve.kind for curve, _ in [*found.scaling_fits, *found.efficiency_breakdowns]]
    assert (told, len(found.weak_refusals)) == (([], 1) if grows else (["weak"] * 2, 0))


def test_two_device_counts_and_two_sizes_are_no_law_and_no_exponent(read_back):
    found = read_back(
        {"devices": d, "points": 24, "sizes": {"p": p, "o": 3}, "seconds": p / d}
        for d in (1, 2)
        for p in (4, 8)
    )
    assert (found.scaling_fits, found.size_exponents, len(found.efficiency_breakdowns)) == ([], [], 2)


@pytest.mark.parametrize(
    "told, kinds",
    [
        ({"scaling": "weak"}, {"weak"}),
        ({"scaling": 5, "cases": 5}, {"strong"}),
        ({"scaling": {"weak": 1}, "cases": {"a": 1}}, {"strong"}),
        ({"scaling": [["weak"], 3, "weak"], "cases": [1, {"key": ["x"]}, {"key": {}, "case": 3}]}, {"weak"}),
        ({"scaling": True, "cases": "abc", "study": [1]}, {"strong"}),
    ],
)
def test_a_study_file_that_somebody_damaged_takes_nothing_from_the_records(read_back, tmp_path, told, kinds):
    read_back({"devices": d, "points": 6 * d, "seconds": 1.0} for d in (1, 2))
    write_json(tmp_path / "study.json", told)
    found = read(tmp_path)
    assert {curve.kind for curve in found.curves} == kinds and len(found.records) == 2

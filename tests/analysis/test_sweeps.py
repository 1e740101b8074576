"""Tests of sweeps.py: which sizes are swept, and which sizes are constant."""

from scaling.analysis.cases import Method
from tests.support.records import only, record, sweeps_of


def test_sizes_that_vary_together_are_swept_as_one():
    rows = [
        record(sizes={"m": n, "d": 1}, points=n, mode=mode)
        for n in (4, 8, 16)
        for mode in ("jacfwd", "jacrev")
    ]
    panel = only(sweeps_of(rows))
    assert (panel.swept, panel.fixed_sizes) == ("points = m", "d=1")
    assert [size for size, _ in panel.lines[Method("jacrev", "vmap")]] == [4, 8, 16]
    assert len(panel.lines) == 2


def test_size_with_the_most_values_is_swept_and_each_value_of_the_others_has_a_panel():
    rows = [record(sizes={"p": p, "o": o}, points=12) for p in (4, 8, 16) for o in (2, 5)]
    expected = [("p", "points=12 o=2"), ("p", "points=12 o=5")]
    assert [(p.swept, p.fixed_sizes) for p in sweeps_of(rows)] == expected


def test_every_size_with_three_values_is_swept():
    rows = [record(sizes={"p": p, "o": o}, points=12) for p in (4, 8, 16, 32) for o in (2, 3, 5)]
    assert sorted((sweep.swept, sweep.fixed_sizes) for sweep in sweeps_of(rows)) == [
        ("o", "points=12 p=16"), ("o", "points=12 p=32"), ("o", "points=12 p=4"), ("o", "points=12 p=8"),
        ("p", "points=12 o=2"), ("p", "points=12 o=3"), ("p", "points=12 o=5"),
    ]  # fmt: skip


def test_single_size_makes_no_sweep():
    assert sweeps_of([record(), record(mode="jacrev")]) == []
    rows = [record(sizes={"p": p, "o": o}) for p, o in ((4, 2), (8, 2), (16, 2), (4, 5))]
    assert only(sweeps_of(rows)).fixed_sizes == "points=12 o=2"

"""Tests of the tiers: the modules that need not be collected for an expression of tiers, and the items of a covering."""

import itertools

import pytest

from tests.support import pairs, tiers

SLURM, PEER, THIN = '"slurm"', "pytest.mark.peer", 'pytest.mark.thin(3, "thorough")'


@pytest.mark.parametrize(
    ("text", "expression", "expected"),
    [
        (SLURM, "slurm and not quiet", True),
        (PEER, "slurm and not quiet", False),
        ("def test_peers(): ...", "peer", False),
        (PEER, "default or not (slurm or peer)", True),
        ("", "default or not (slurm or peer)", True),
        ("", "(process or thorough) and not default", False),
        (THIN, "(process or thorough) and not default", True),
        (PEER + THIN, "process and not peer", False),
        (PEER, "usefixtures and not peer", True),
        (PEER, "", True),
    ],
)
def test_a_module_is_collected_if_the_tiers_that_it_names_may_match(tmp_path, text, expression, expected):
    path = tmp_path / "test_any.py"
    path.write_text(text)
    assert tiers.may_match(path, expression) is expected


@pytest.mark.parametrize("strength", [1, 2])
def test_a_covering_of_a_product_has_the_given_rows_and_every_combination_of_its_values(strength):
    product = list(itertools.product("abcd", "xyz", "01"))
    given = [("a", "x", "0"), ("b", "x", "0")]
    chosen = pairs.find_cover(product, strength, given)
    assert {*chosen} >= {*given} and len(chosen) < len(product)
    for axes in itertools.combinations(range(3), strength):
        assert {tuple(row[i] for i in axes) for row in chosen} == {
            tuple(row[i] for i in axes) for row in product
        }

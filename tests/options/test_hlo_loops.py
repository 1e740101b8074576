"""How often a loop over the elements of a fusion evaluates an instruction: by hand, on loops of unequal lengths."""

import pytest

from scaling.options.program import hlo_cost, hlo_loops
from tests.support.hlo_text import fused_lines, fusion_text

OUTER = """f32[5,3]{{1,0}} parameter(0)
  %c = f32[5,3]{{1,0}} cosine(%p)
  %b = f32[{shape}]{{2,1,0}} broadcast(%c), dimensions={{{axes}}}"""
PADDED = """f32[5,7,3]{2,1,0} parameter(0)
  %zero = f32[] constant(0)
  %c = f32[5,7,3]{2,1,0} cosine(%p)
  %one = f32[5,7,4]{2,1,0} pad(%c, %zero), padding=0_0x0_0x0_1
  %two = f32[5,7,4]{2,1,0} pad(%c, %zero), padding=0_0x0_0x1_0"""

ROW_SUMS = """f32[5,3]{1,0} parameter(0)
  %c = f32[5]{0} reduce(%p), dimensions={1}
  %b = f32[5,7]{1,0} broadcast(%c), dimensions={0}"""
SUM_OF_COSINES = """f32[5,3]{1,0} parameter(0)
  %c = f32[5,3]{1,0} cosine(%p)
  %s = f32[5]{0} reduce(%c), dimensions={1}
  %b = f32[7,5]{1,0} broadcast(%s), dimensions={1}"""


def count_evaluations(lines):
    return hlo_loops.count_evaluations(lines)


@pytest.mark.parametrize(
    ("shape", "axes", "evaluated"),
    [
        ("5,3,7", "0,1", 5 * 3),  # outside of the loop over 7
        ("5,7,3", "0,2", 5 * 7 * 3),  # in the innermost loop, so again for each of the 7
        ("7,5,3", "1,2", 7 * 5 * 3),
    ],
)
def test_a_value_is_computed_again_in_each_iteration_of_the_loops_around_its_own(shape, axes, evaluated):
    sized = f"f32[{shape}]{{2,1,0}}"
    lines = fused_lines(OUTER.format(shape=shape, axes=axes), f"{sized} add(%b, %b)")
    assert count_evaluations(lines)["c"] == evaluated


def test_a_value_that_is_used_at_two_positions_is_computed_twice():
    root = "f32[5,7,4]{2,1,0} add(%one, %two)"
    lines = fused_lines(PADDED, root)
    found = count_evaluations(lines)
    assert found["c"] == 2 * 5 * 7 * 4 and found["one"] == found["two"] == found["r"] == 5 * 7 * 4
    (kernel,) = hlo_cost.read(fusion_text(PADDED, root)).kernels
    assert kernel.transcendentals == round(2 * 4 / 3) * 5 * 7 * 3


def test_a_transposed_result_is_computed_in_the_order_of_its_layout():
    body = ROW_SUMS
    lines = fused_lines(body, "f32[7,5]{1,0} transpose(%b), dimensions={1,0}")
    assert count_evaluations(lines)["c"] == 7 * 5
    lines = fused_lines(body, "f32[7,5]{0,1} transpose(%b), dimensions={1,0}")
    assert count_evaluations(lines)["c"] == 5


def test_the_terms_of_a_sum_are_in_a_loop_of_their_own():
    body = SUM_OF_COSINES
    lines = fused_lines(body, "f32[7,5]{1,0} negate(%b)")
    assert count_evaluations(lines) == {"r": 35, "b": 35, "s": 35, "c": 105, "p": 105}


GATHERED = """f32[5,3]{1,0} parameter(0)
  %c = f32[5,3]{1,0} cosine(%p)
  %i = s32[7,1]{1,0} constant({...})"""


def test_a_gathered_value_is_computed_again_for_each_index():
    rest = "start_index_map={1}, index_vector_dim=1, slice_sizes={5,1}"
    root = f"f32[7,5]{{1,0}} gather(%c, %i), offset_dims={{1}}, collapsed_slice_dims={{1}}, {rest}"
    lines = fused_lines(GATHERED, root)
    assert count_evaluations(lines)["c"] == 7 * 5
    root = f"f32[7,5,1]{{2,1,0}} gather(%c, %i), offset_dims={{1,2}}, collapsed_slice_dims={{}}, {rest}"
    lines = fused_lines(GATHERED, root)
    assert count_evaluations(lines)["c"] == 7 * 5


@pytest.mark.parametrize(
    ("before", "after", "axis", "evaluated"),
    [
        ("5,12", "5,3,4", 0, 5),  # the cosines vary with the first axis alone
        ("5,12", "5,3,4", 1, 60),
        ("5,3,4", "5,12", 0, 5),
        ("5,3,4", "5,12", 2, 60),
        ("5,12", "1,5,1,12", 0, 5),
        ("5,12", "1,5,1,12", 1, 60),
    ],
)
def test_a_reshaped_value_varies_with_the_loops_over_its_parts(before, after, axis, evaluated):
    length = before.split(",")[axis]
    body = f"""f32[{length}] parameter(0)
  %c = f32[{length}] cosine(%p)
  %b = f32[{before}] broadcast(%c), dimensions={{{axis}}}"""
    for opcode in ("bitcast", "reshape"):
        body_of = f"{body}\n  %s = f32[{after}] {opcode}(%b)"
        assert count_evaluations(fused_lines(body_of, f"f32[{after}] negate(%s)"))["c"] == evaluated


def test_a_bitcast_that_transposes_is_computed_in_the_order_of_its_operand():
    body = """f32[7]{0} parameter(0)
  %c = f32[7]{0} cosine(%p)
  %b = f32[5,7]{0,1} broadcast(%c), dimensions={1}"""
    assert count_evaluations(fused_lines(body, "f32[7,5]{1,0} bitcast(%b)"))["c"] == 7


def test_each_element_of_a_concatenation_is_computed_from_one_operand():
    body = """f32[7,3]{1,0} parameter(0)
  %c = f32[7,3]{1,0} cosine(%p)
  %s = f32[7,5]{1,0} sine(%a)"""
    lines = fused_lines(body, "f32[7,8]{1,0} concatenate(%c, %s), dimensions={1}", "f32[7,5]{1,0}")
    assert [count_evaluations(lines)[name] for name in ("r", "c", "s")] == [56, 21, 35]

"""How often a loop over the elements of a fusion evaluates an instruction: by hand, on loops of unequal lengths."""

import pytest

from scaling.options.program import hlo, hlo_cost, hlo_loops, hlo_ops

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


def lines_of(body, root):
    """The instructions of a fused computation with the parameter p, some more lines and a root."""
    parameter = body.partition(" parameter")[0]
    text = f"""\
%fused (p: {parameter}) -> f32[] {{
  %p = {body}
  ROOT %r = {root}
}}

ENTRY %main (a: {parameter}) -> f32[] {{
  %a = {parameter} parameter(0)
  ROOT %f = {root.split(" ")[0]} fusion(%a), kind=kLoop, calls=%fused
}}
"""
    return hlo.parse(text)[0]["fused"], text


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
    lines, _ = lines_of(OUTER.format(shape=shape, axes=axes), f"{sized} add(%b, %b)")
    assert hlo_loops.count_evaluations(lines)["c"] == evaluated


def test_a_value_that_is_used_at_two_positions_is_computed_twice():
    lines, text = lines_of(PADDED, "f32[5,7,4]{2,1,0} add(%one, %two)")
    found = hlo_loops.count_evaluations(lines)
    assert found["c"] == 2 * 5 * 7 * 4 and found["one"] == found["two"] == found["r"] == 5 * 7 * 4
    (kernel,) = hlo_cost.read(text).kernels
    assert kernel.transcendentals == round(2 * 4 / 3) * 5 * 7 * 3


def test_a_transposed_result_is_computed_in_the_order_of_its_layout():
    body = ROW_SUMS
    lines, _ = lines_of(body, "f32[7,5]{1,0} transpose(%b), dimensions={1,0}")
    assert hlo_loops.count_evaluations(lines)["c"] == 7 * 5
    lines, _ = lines_of(body, "f32[7,5]{0,1} transpose(%b), dimensions={1,0}")
    assert hlo_loops.count_evaluations(lines)["c"] == 5


def test_the_terms_of_a_sum_are_in_a_loop_of_their_own():
    body = SUM_OF_COSINES
    lines, _ = lines_of(body, "f32[7,5]{1,0} negate(%b)")
    assert hlo_loops.count_evaluations(lines) == {"r": 35, "b": 35, "s": 35, "c": 105}


GATHERED = """f32[5,3]{1,0} parameter(0)
  %c = f32[5,3]{1,0} cosine(%p)
  %i = s32[7,1]{1,0} constant({...})"""


def test_a_gathered_value_is_computed_again_for_each_index():
    rest = "start_index_map={1}, index_vector_dim=1, slice_sizes={5,1}"
    root = f"f32[7,5]{{1,0}} gather(%c, %i), offset_dims={{1}}, collapsed_slice_dims={{1}}, {rest}"
    lines, _ = lines_of(GATHERED, root)
    assert hlo_loops.count_evaluations(lines)["c"] == 7 * 5
    root = f"f32[7,5,1]{{2,1,0}} gather(%c, %i), offset_dims={{1,2}}, collapsed_slice_dims={{}}, {rest}"
    lines, _ = lines_of(GATHERED, root)
    assert hlo_loops.count_evaluations(lines)["c"] == 7 * 5


def test_a_transpose_reads_across_rows_only_what_is_in_memory():
    cosine = hlo_ops.UNVECTORIZED["cosine"] - 1
    small = """f32[5]{0} parameter(0)
  %c = f32[5]{0} cosine(%p)
  %b = f32[5,7]{1,0} broadcast(%c), dimensions={0}"""
    _, text = lines_of(small, "f32[5,7]{0,1} copy(%b)")  # 35 elements, from 5 in memory
    (kernel,) = hlo_cost.read(text).kernels
    assert kernel.unvectorized == 35 * cosine + 5 * hlo_ops.STRIDED
    large = """f32[5,7]{1,0} parameter(0)
  %c = f32[5,7]{1,0} cosine(%p)"""
    _, text = lines_of(large, "f32[5,7]{0,1} copy(%c)")
    (kernel,) = hlo_cost.read(text).kernels
    assert kernel.unvectorized == 35 * (cosine + hlo_ops.STRIDED)


def test_a_cosine_takes_a_cpu_longer_than_an_exponential():
    text = "f32[5,3]{{1,0}} parameter(0)\n  %c = f32[5,3]{{1,0}} {}(%p)"
    costs = {
        name: lines_of(text.format(name), "f32[5,3]{1,0} negate(%c)")[1] for name in ("cosine", "exponential")
    }
    extra = {name: hlo_cost.read(cost).kernels[0].unvectorized for name, cost in costs.items()}
    assert extra == {"cosine": 15 * (hlo_ops.UNVECTORIZED["cosine"] - 1), "exponential": 0}

"""Cache keys of functions: equal code and captured values have equal keys."""

import jax
import pytest

from scaling.core.workload import Workload, fingerprint, normal
from scaling.options import pytrees


class Closed:
    def __init__(self, scale):
        self.scale = scale

    def form(self, x):
        return self.scale * x


def make(scale):
    return lambda x: scale * x


def test_functions_with_equal_captured_values_have_equal_keys():
    assert fingerprint(make(2)) == fingerprint(make(2))
    assert fingerprint(make(2)) != fingerprint(make(3))


def make_recursive(scale):
    def power(x, n):
        return scale * x * power(x, n - 1) if n else 1

    return power


def test_functions_that_call_themselves_have_keys():
    assert fingerprint(make_recursive(2)) == fingerprint(make_recursive(2))
    assert fingerprint(make_recursive(2)) != fingerprint(make_recursive(3))


def test_methods_of_different_objects_have_different_keys():
    one, other = Closed(2), Closed(3)
    assert fingerprint(one.form) == fingerprint(one.form)
    assert fingerprint(one.form) != fingerprint(other.form)


@pytest.mark.parametrize("make_key", [jax.random.key, jax.random.PRNGKey])
def test_captured_random_keys_are_compared_by_value(make_key):
    assert fingerprint(make(make_key(2))) == fingerprint(make(make_key(2)))
    assert fingerprint(make(make_key(2))) != fingerprint(make(make_key(3)))


def make_without_scale(scale):
    form = lambda x: scale * x if x else x  # noqa: E731, F821
    del scale
    return form


def test_functions_with_a_deleted_captured_variable_have_equal_keys():
    assert fingerprint(make_without_scale(2)) == fingerprint(make_without_scale(3))
    assert fingerprint(make_without_scale(2)) != fingerprint(make(2))


def make_with_trees(size):
    points, shared = {"x": normal(3)}, {"params": {"w": normal(size), "b": [normal()]}}
    return pytrees.with_flat_inputs("mine", Workload(lambda x, params: x, points, shared))


def test_functions_of_pytrees_with_the_same_leaves_have_equal_keys():
    assert fingerprint(make_with_trees(3).function) == fingerprint(make_with_trees(3).function)

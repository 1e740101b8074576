"""Choose the inputs that `mode=mixed` differentiates in forward mode, instead of reverse mode."""

from collections.abc import Mapping

from scaling.core.case import Case, Refusal, unknown_name


def forward_inputs(case: Case, input_sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the names of the inputs that mode=mixed differentiates in forward mode.

    `case.forward` joins the names by "+". The name of a pytree selects all its leaves. If it is None, return
    all inputs except the largest. Raise `Refusal` if a name is unknown or repeated, or if all are named.
    """
    if case.forward is None:
        largest = max(input_sizes, key=lambda name: input_sizes[name])
        return tuple(name for name in input_sizes if name != largest)
    forward: list[str] = []
    for name in case.forward.split("+"):
        leaves = [leaf for leaf in input_sizes if leaf == name or leaf.startswith(f"{name}.")]
        if not leaves:
            raise unknown_name(f"input to take forward (forward), of wrt={case.wrt},", name, input_sizes)
        forward += leaves
    if len(set(forward)) == len(input_sizes) or len(set(forward)) < len(forward):
        raise Refusal(
            f"forward={case.forward} of wrt={case.wrt}: name some of these inputs, each once, and leave some "
            "to reverse mode"
        )
    return tuple(forward)

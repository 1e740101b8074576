"""Write HLO modules with one fusion."""

from scaling.options.program import hlo


def fusion_text(body: str, root: str, *others: str) -> str:
    """Return a module with a fusion.

    Args:
        body: the type of the parameter p and "parameter(0)", then the further lines of the fusion.
        root: its last line, without the name.
        others: the types of the parameters a and b, if it has them.
    """
    types = [body.partition(" parameter")[0], *others]
    more = [
        f"  %{name} = {type_} parameter({k})\n"
        for k, (name, type_) in enumerate(zip("ab", others, strict=False), 1)
    ]
    arguments = [f"  %x{k} = {type_} parameter({k})\n" for k, type_ in enumerate(types)]
    names = ", ".join(f"%x{k}" for k in range(len(types)))
    return f"""\
%fused (p: {types[0]}) -> f32[] {{
{"".join(more)}  %p = {body}
  ROOT %r = {root}
}}

ENTRY %main (x: {types[0]}) -> f32[] {{
{"".join(arguments)}  ROOT %f = {root.split(" ")[0]} fusion({names}), kind=kLoop, calls=%fused
}}
"""


def fused_lines(body: str, root: str, *others: str) -> hlo.Instructions:
    """Return the instructions of the fusion that `fusion_text` writes."""
    return hlo.parse(fusion_text(body, root, *others))[0]["fused"]

"""Write HLO modules with one fusion."""


def fusion_text(body: str, root: str, attributes: str = "kind=kLoop") -> str:
    """Return a module with a fusion.

    Args:
        body: the type of the parameter p and "parameter(0)", then the further lines of the fusion.
        root: its last line, without the name.
        attributes: the attributes of the fusion.
    """
    type_ = body.partition(" parameter")[0]
    return f"""\
%fused (p: {type_}) -> f32[] {{
  %p = {body}
  ROOT %r = {root}
}}

ENTRY %main (x: {type_}) -> f32[] {{
  %x = {type_} parameter(0)
  ROOT %f = {root.split(" ")[0]} fusion(%x), {attributes}, calls=%fused
}}
"""

"""Static cost analysis of a program: operations, memory traffic and collectives, from its jaxpr and its HLO."""

"""Static cost analysis of a program from its jaxpr and HLO: operations, memory traffic, collectives."""

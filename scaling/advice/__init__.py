"""List, predict, measure and choose ways to differentiate a function: `scaling.advise` and `mode=auto`."""

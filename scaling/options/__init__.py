"""Implement options of a case: sparse seeds, pmap, blocks, host memory, sums over points, Laplacians."""

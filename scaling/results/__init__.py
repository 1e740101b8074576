"""Read and write a results folder: check and lock it, parse its records, and replace its files."""

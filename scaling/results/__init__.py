"""Read and write a results folder: parse and check its records, lock it, and replace its files."""

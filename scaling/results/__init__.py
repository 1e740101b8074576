"""Read and write a results folder: parse its records, lock the folder, and replace its files."""

"""Read the records of a results folder, lock the folder, and replace files atomically."""

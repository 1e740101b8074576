"""Read the records of a results folder, lock the folder, and replace its other files."""

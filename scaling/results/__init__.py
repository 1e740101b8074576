"""Parse records (read_record.py), and read, lock and replace the files of a results folder (store.py)."""

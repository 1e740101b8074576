"""Files that are replaced as a whole, or not at all: whoever reads one while it is written sees the old or the new."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside it to write to, which takes its place at the end; after an error the file is as it was before."""
    fresh = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")
    try:
        yield fresh
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def replace(path: Path, content: bytes) -> None:
    """Write a file as a whole."""
    with replacing(path) as fresh:
        fresh.write_bytes(content)

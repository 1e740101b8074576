"""Files that are replaced atomically: a reader sees the old or the new content, never a part."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replace_on_success(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces the file at the end; after an error the file is unchanged."""
    fresh = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")
    try:
        yield fresh
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with replace_on_success(path) as fresh:
        fresh.write_bytes(content)

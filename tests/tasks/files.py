"""Files that tests write."""

import json

import pyarrow
import pyarrow.parquet


def write(path, content):
    """Bytes as they are, a text in UTF-8 with its own line ends, and anything else as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, bytes | str):
        content = json.dumps(content, indent=1)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def write_parquet(path, rows, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, **options)
    return path

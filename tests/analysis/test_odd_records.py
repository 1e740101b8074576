"""If an entry of a record is missing or has another type, its line is named as damaged, or all tables can still be made."""

import json

import numpy as np
import pytest

from scaling.analysis import dataframe, findings
from scaling.core.record import to_line
from scaling.report.terminal import summary_lines
from tests.support import made_up, planned

ODD = ([1], ["x"], [{"a": [1]}], [{"samples": None}], {"a": 1}, {}, "x", -1, True, None, 1e300)
MEASURED = made_up.record(np.random.default_rng(0), made_up.case_of("rbf", devices=2))
PLANNED = planned.plan(1e-3, 2)


def entries(fields):
    """List the paths of the fields of a record and of the entries of its dicts."""
    nested = ((name, entry) for name, value in fields.items() if isinstance(value, dict) for entry in value)
    return [*((name,) for name in fields), *nested]


PATHS = [
    (name, path)
    for name, record in (("measured", MEASURED), ("planned", PLANNED))
    for path in entries(json.loads(to_line(record)))
    if path[0] != "schema"
]


@pytest.mark.thin(8, "thorough")
@pytest.mark.thin(2, "thorough")
@pytest.mark.parametrize(
    ("kind", "path"), PATHS, ids=lambda value: value if isinstance(value, str) else ".".join(value)
)
def test_an_odd_or_missing_value_in_a_record_ends_as_a_damaged_line_or_in_the_tables(kind, path, tmp_path):
    made_up.write(tmp_path, [MEASURED, PLANNED])
    for odd in (*ODD, ...):
        fields = json.loads(to_line(MEASURED if kind == "measured" else PLANNED))
        parent = fields if len(path) == 1 else fields[path[0]]
        if odd is ...:
            del parent[path[-1]]
        else:
            parent[path[-1]] = odd
        (tmp_path / "the odd one, read last.jsonl").write_text(json.dumps(fields) + "\n")
        found = findings.read(tmp_path)
        tables = dataframe.export_tables(found)
        assert summary_lines(found, tmp_path) and tables and len(found.damaged) <= 1, odd

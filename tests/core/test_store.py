"""Tests of the record store: finished records are never lost, and damaged lines are reported and skipped."""

import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from scaling.core.case import Refusal, to_dict
from scaling.core.record import FAILED, SKIPPED, Writer, to_line
from scaling.results import store
from scaling.results.read_record import parse_record

JUNK = {
    "an incomplete line": b'{"case": {"workload": "lin',
    "binary": bytes(range(256)).replace(b"\n", b""),
    "bytes that are not UTF-8": b'{"schema": 1, "text": "\xff\xfe"}',
    "zeros, as after a crash of the file system": b"\0" * 300,
    "a number": b"5",
    "a list": b"[1, 2, 3]",
    "null": b"null",
    "an object that is not a record": b'{"hello": "world"}',
    "a record without fields": b'{"schema": 1}',
    "deeply nested brackets": b"[" * 100_000,
    "a number of 10,000 digits": b"9" * 10_000,
}


def write(path, *lines):
    path.write_bytes(
        b"".join(line if isinstance(line, bytes) else to_line(line).encode() + b"\n" for line in lines)
    )


def changed_line(record, **fields):
    """Return the line of a record with other fields."""
    return json.dumps(json.loads(to_line(record)) | fields).encode() + b"\n"


def test_records_are_loaded_as_they_were_written(tmp_path, make_record):
    records = [
        make_record(
            devices=2,
            stop_reason="width",
            collectives={"all-reduce": 0},
            passes=15,
            flops=1e6,
            started_at="2026-11-21",
        ),
        make_record(
            "failed",
            reason="wrong_answer",
            text="point 3 is wrong \u2028 µ \x1b[31m\n\r\t",
            error=0.3,
            attempt=2,
        ),
        make_record("skipped", reason="no_digits", text='quotes " and \\', replicate=3),
    ]
    writer = Writer(tmp_path)
    for record in records:
        writer.append(record)
    assert store.load(tmp_path) == (records, [], [])


def test_a_record_is_one_line_of_strict_json_with_its_key(make_record):
    record = make_record("failed", reason="error", text="two\nlines\u2028three")
    line = to_line(record)
    assert len(line.splitlines()) == 1 and line.isascii()
    assert json.loads(line)["key"] == record.key


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_numbers_are_written_as_null(make_record, value):
    line = to_line(
        make_record(
            "failed", reason="not_finite", error=value, flops=value, environment={"deep": [{"load": value}]}
        )
    )
    fields = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} was written"))
    assert fields["error"] is None and fields["flops"] is None
    assert fields["environment"]["deep"] == [{"load": None}]


@pytest.mark.parametrize("damage", JUNK)
@pytest.mark.parametrize("position", [0, 1, 2], ids=["first", "between", "last"])
def test_a_damaged_line_is_reported_and_the_other_lines_are_loaded(tmp_path, make_record, damage, position):
    good = [make_record(points=n) for n in (7, 9)]
    lines = [to_line(record).encode() for record in good]
    lines.insert(position, JUNK[damage])
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    records, damaged, _ = store.load(tmp_path)
    assert records == good
    assert len(damaged) == 1 and damaged[0].startswith(f"a.jsonl:{position + 1}: ")
    assert len(damaged[0]) < 200 and "\n" not in damaged[0]


def test_an_incomplete_last_line_of_any_length_is_reported_and_skipped(tmp_path, make_record):
    good, incomplete = make_record(points=7), to_line(make_record(points=9)).encode()
    for end in range(1, len(incomplete), 97):
        write(tmp_path / "a.jsonl", good, incomplete[:end])
        records, damaged, _ = store.load(tmp_path)
        assert records == [good] and len(damaged) == 1 and damaged[0].startswith("a.jsonl:2: "), end


def test_a_complete_last_line_without_a_newline_is_loaded(tmp_path, make_record):
    (tmp_path / "a.jsonl").write_text(to_line(make_record()))
    assert store.load(tmp_path) == ([make_record()], [], [])


def test_empty_files_empty_lines_crlf_and_a_byte_order_mark_are_not_damage(tmp_path, make_record):
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "lines.jsonl").write_bytes(b"\n\r\n  \n" + to_line(make_record()).encode() + b"\r\n\n")
    (tmp_path / "marked.jsonl").write_text(to_line(make_record()), encoding="utf-8-sig")
    (tmp_path / "study.json").write_text("not a record file")
    assert store.load(tmp_path) == ([make_record()] * 2, [], [])


@pytest.mark.parametrize("schema", [0, -2, "1", None, [], {}])
def test_a_record_of_another_schema_is_reported_with_both_versions(tmp_path, make_record, schema):
    write(tmp_path / "a.jsonl", changed_line(make_record(), schema=schema))
    records, [damage], _ = store.load(tmp_path)
    assert records == [] and f"schema {schema!r}" in damage and "reads 1" in damage


def test_a_record_whose_key_differs_from_that_of_its_case_is_damaged(tmp_path, make_record):
    case = to_dict(make_record(points=8).case)
    for changed in ({"key": "0" * 16}, {"key": None}, {"case": case}):
        write(tmp_path / "a.jsonl", changed_line(make_record(), **changed))
        records, [damage], _ = store.load(tmp_path)
        assert records == [] and "key" in damage


@pytest.mark.parametrize(
    "changed",
    [
        {"status": "done"}, {"status": None}, {"reason": "bad luck"}, {"environment": None}, {"environment": {}}, {"seconds": []},
        {"environment": {"digest": 3}}, {"seconds": [0.1, 0]}, {"seconds": [0.1, -0.1]}, {"seconds": [0.1, None]},
        {"surprise": 1}, {"seconds": [0.1, "0.2"]}, {"seconds": [True]}, {"seconds": {"a": 1}}, {"case": None},
        {"case": {}}, {"case": []},
        {"seconds": [float("nan")]}, {"seconds": [float("inf")]}, {"flops": float("nan")}, {"floor_seconds": float("inf")},
        {"seconds_min": ["0.1"]}, {"turns": [1.5]}, {"turns": [2**62]}, {"compilations": [3]}, {"started_at": "2026-13-45T00:00:00Z"},
    ],
    ids=str,
)  # fmt: skip
def test_a_record_with_an_invalid_field_is_damaged(tmp_path, make_record, changed):
    good = make_record(points=9)
    write(tmp_path / "a.jsonl", changed_line(make_record(), **changed), good)
    records, damaged, _ = store.load(tmp_path)
    assert records == [good] and len(damaged) == 1


WRONG_TYPES = [None, 5, -1.5, "x", True, [], {}, [None], ["x"], {"a": []}]


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(store.Record) if f.name != "schema"])
def test_a_field_of_a_wrong_type_does_not_prevent_loading_the_folder(tmp_path, make_record, field):
    """Loaded records have an identity and can be compared and sorted."""
    good = make_record(points=9, started_at="2026-11-21", environment={"cores": [0]})
    for status in ("ok", "failed"):
        reason = "error" if status == "failed" else None
        record = make_record(status, reason=reason, started_at="2026-11-21")
        for value in WRONG_TYPES:
            write(tmp_path / "a.jsonl", changed_line(record, **{field: value}), good)
            records, damaged, _ = store.load(tmp_path)
            assert len(records) + len(damaged) == 2 and good in records, value
            assert good in store.latest_records([*records, *records]), value
            assert all(isinstance(record.honest, bool) for record in records), value


def test_every_skip_and_failure_reason_round_trips(make_record):
    for status, reasons in (("skipped", SKIPPED), ("failed", FAILED)):
        for reason in reasons:
            record = make_record(status, reason=reason)
            assert parse_record(to_line(record)) == record


def fail_with(code):
    """Return a function that raises the error of a system call."""

    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    return fail


def test_a_writer_whose_file_was_lost_by_the_file_system_opens_another_one(tmp_path, make_record):
    """fstat fails if another client of NFS has removed the file."""
    writer = Writer(tmp_path)
    writer.append(make_record(points=7))
    os.close(writer._file)
    writer.append(make_record(points=9))
    assert len(store.load(tmp_path).records) == len(list(tmp_path.glob("*.jsonl"))) == 2


def test_two_writers_never_share_a_file(tmp_path, make_record):
    writers = [Writer(tmp_path) for _ in range(20)]
    for turn in range(2):
        for n, writer in enumerate(writers):
            writer.append(make_record(points=100 * turn + n + 1))
    files = list(tmp_path.glob("*.jsonl"))
    assert len(files) == 20
    assert {len(path.read_bytes().splitlines()) for path in files} == {2}
    assert len(store.load(tmp_path).records) == 40


def test_no_record_is_written_to_a_deleted_file_or_folder(tmp_path, make_record):
    folder, records = tmp_path / "results", [make_record(points=points) for points in (6, 8, 10)]
    folder.mkdir()
    writer = Writer(folder)
    writer.append(records[0])
    next(folder.glob("*.jsonl")).unlink()
    writer.append(records[1])
    assert store.load(folder).records == [records[1]]
    shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError):
        writer.append(records[2])


def test_a_writer_without_records_creates_no_file(tmp_path):
    Writer(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_record_is_on_disk_before_append_returns(tmp_path, make_record, monkeypatch):
    synced = []
    fsync = os.fsync

    def record_fsync(handle):
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", record_fsync)
    writer = Writer(tmp_path)
    for n in (1, 2):
        synced.clear()
        writer.append(make_record(points=n))
        [path] = tmp_path.glob("*.jsonl")
        assert synced[-1] == str(path)
        assert len(path.read_bytes().splitlines()) == n


def test_a_write_that_fails_half_way_raises_and_keeps_the_earlier_records(tmp_path, make_record):
    """The kernel writes what fits. The writer removes the incomplete line and can continue."""
    script = """
        import resource, signal, sys
        from pathlib import Path
        from scaling.core.record import Writer
        from scaling.results.read_record import parse_record

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        lines = sys.stdin.read().splitlines()
        writer = Writer(Path(sys.argv[1]))
        writer.append(parse_record(lines[0]))
        hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(lines[0]) + 1 + len(lines[1]) // 2, hard_limit))
        try:
            writer.append(parse_record(lines[1]))
        except OSError as error:
            print(error.strerror, error.filename == sys.argv[1])
        print(next(Path(sys.argv[1]).glob("*.jsonl")).stat().st_size)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard_limit, hard_limit))
        writer.append(parse_record(lines[2]))
    """
    records = [make_record(points=n) for n in (7, 8, 9)]
    lines = [to_line(record) for record in records]
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], input="\n".join(lines), capture_output=True, text=True,
        check=True, timeout=60,
    )  # fmt: skip
    assert process.stdout.splitlines() == ["File too large True", str(len(lines[0]) + 1)]
    assert store.load(tmp_path) == ([records[0], records[2]], [], [])


def test_json_files_are_replaced_atomically(tmp_path, monkeypatch):
    path = tmp_path / "study.json"
    store.write_json(path, {"a": [1]})
    store.write_json(path, {"b": [2]})
    assert store.read_json(path) == {"b": [2]}
    with pytest.raises(TypeError):
        store.write_json(path, {"c": object()})
    monkeypatch.setattr(os, "replace", fail_with(errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        store.write_json(path, {"d": 4})
    assert store.read_json(path) == {"b": [2]}
    assert list(tmp_path.iterdir()) == [path], "no temporary file remains"


@pytest.mark.parametrize("damage", [*JUNK.values(), b""], ids=[*JUNK, "nothing"])
def test_reading_a_damaged_json_file_returns_none_or_its_value(tmp_path, damage):
    path = tmp_path / "study.json"
    path.write_bytes(damage)
    assert store.read_json(path) in (None, 5, [1, 2, 3], {"hello": "world"}, {"schema": 1})
    assert store.read_json(tmp_path / "gone.json") is None


def test_the_latest_ok_record_is_preferred_to_later_failures(make_record):
    first = make_record(started_at="2026-11-21T08:00", attempt=1)
    second = make_record(started_at="2026-11-21T09:00", attempt=2)
    failed = make_record("failed", reason="killed", started_at="2026-11-21T10:00", attempt=3)
    for order in ([first, second, failed], [failed, second, first], [second, failed, first]):
        assert store.latest_records(order) == [second]


def test_without_an_ok_record_the_latest_failure_is_returned(make_record):
    early = make_record("failed", reason="error", started_at="2026-11-21T08:00", attempt=1)
    late = make_record("failed", reason="killed", started_at="2026-11-21T09:00", attempt=2)
    assert store.latest_records([late, early]) == store.latest_records([early, late]) == [late]
    skipped = make_record("skipped", reason="too_large", started_at="2026-11-21T07:00")
    assert store.latest_records([late, skipped, early]) == [skipped]


def test_a_failed_preflight_check_is_omitted_if_the_study_does_not_have_its_case(tmp_path, make_record):
    failed = make_record("failed", reason="killed", sizes={"p": 5})
    later = make_record(target="jacobian", wrt="W", formulation="sum", digest="f" * 12)
    assert store.current_records([failed, later], tmp_path) == [failed, later]  # there is no study
    for record, expected in ((later, [later]), (failed, [failed, later])):
        cases = [{"key": record.key, "case": to_dict(record.case)}]
        store.write_json(tmp_path / "study.json", {"cases": cases})
        assert store.current_records([failed, later], tmp_path) == expected


def test_other_environments_and_replicates_are_separate_measurements(make_record):
    records = [make_record(), make_record(digest="f" * 12), make_record(replicate=1), make_record(points=9)]
    assert store.latest_records(records) == records


def test_a_second_run_in_a_folder_waits_and_is_then_rejected_in_one_line(tmp_path):
    with store.lock_folder(tmp_path):
        start = time.monotonic()
        waiting = pytest.raises(Refusal, match=r"another run is working in .*; wait for it")
        with waiting as error, store.lock_folder(tmp_path, seconds=0.3):
            pytest.fail("two runs locked one folder")
        assert time.monotonic() - start >= 0.3 and "\n" not in str(error.value)
    with store.lock_folder(tmp_path):
        pass


def test_a_lock_is_held_while_a_worker_that_inherited_it_lives(tmp_path):
    with store.lock_folder(tmp_path) as handle:
        worker = subprocess.Popen(["sleep", "60"], pass_fds=(handle,))
    try:
        with pytest.raises(Refusal, match="another run"), store.lock_folder(tmp_path, seconds=0.3):
            pytest.fail("a second run began while a worker of the first was alive")
    finally:
        worker.kill()
        worker.wait()
    with store.lock_folder(tmp_path):
        pass


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def test_a_file_system_without_locks_is_named_with_the_fix(tmp_path, monkeypatch, code):
    monkeypatch.setattr(store.fcntl, "flock", fail_with(code))
    with pytest.raises(Refusal) as error, store.lock_folder(tmp_path):
        pytest.fail("the folder was not locked")
    assert f"cannot lock {tmp_path}/.lock" in str(error.value) and os.strerror(code) in str(error.value)
    assert "file system with locks" in str(error.value)


def test_a_lock_that_a_colleague_created_is_used_without_permission_to_write_it(tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / ".lock").chmod(0o444)
    lock = "from pathlib import Path; from scaling.results import store; folder = Path('.')"
    done = run_without_privileges(f"{lock}\nwith store.lock_folder(folder): print('locked')", tmp_path)
    assert done.stdout == "locked\n", done.stderr
    with store.lock_folder(tmp_path):
        code = f"{lock}\nwith store.lock_folder(folder, seconds=0.1): pass"
        assert "Refusal: another run is working in" in run_without_privileges(code, tmp_path).stderr


def test_the_lock_of_a_shared_folder_can_be_written_as_the_umask_of_its_user_allows(tmp_path):
    before = os.umask(0o002)
    try:
        with store.lock_folder(tmp_path):
            assert (tmp_path / ".lock").stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(before)


def test_a_results_folder_that_cannot_be_written_is_rejected(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Refusal, match=r"cannot write to results=.*; give another folder with results=PATH"):
        store.create_results(tmp_path / "file" / "below")
    with pytest.raises(Refusal, match=r"new/x+: File name too long; give another folder"):
        store.parse_results_folder(str(tmp_path / "new" / ("x" * 300)))
    store.create_results(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def run_without_privileges(code, folder):
    """Run Python code in a process to which file permissions apply, also if the user is root."""
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    return subprocess.run(
        [*drop, sys.executable, "-c", textwrap.dedent(code)], cwd=folder, text=True, capture_output=True
    )


def test_a_file_of_records_without_read_permission_is_rejected_before_its_cases_run_again(
    tmp_path, make_record
):
    write(tmp_path / "a.jsonl", make_record())
    (tmp_path / "a.jsonl").chmod(0)
    done = run_without_privileges(
        "from pathlib import Path; from scaling.results.store import create_results; create_results(Path('.'))",
        tmp_path,
    )
    assert "Refusal: a.jsonl cannot be read: Permission denied; make it readable" in done.stderr


def test_a_results_folder_without_read_permission_is_refused(tmp_path):
    (tmp_path / "mine").mkdir(mode=0)
    done = run_without_privileges(
        "from scaling.results import store; store.require_results_folder('mine')", tmp_path
    )
    assert "Refusal: no results in 'mine' that this user can read" in done.stderr


def test_a_full_disk_is_reported_with_the_file_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", fail_with(errno.ENOSPC))  # as a write does, without a file name
    monkeypatch.setattr(os, "unlink", fail_with(errno.ENOSPC))  # as on a read-only file system
    with pytest.raises(OSError, match=r"No space left on device: '.*/study.json'"):
        store.write_json(tmp_path / "study.json", {})


def test_an_error_of_writing_names_the_file_not_the_temporary_one(tmp_path):
    (tmp_path / "mine").mkdir(mode=0o500)
    code = "from pathlib import Path; from scaling.results import store; store.write_json(Path('mine/study.json'), {})"
    done = run_without_privileges(code, tmp_path)
    assert "PermissionError: [Errno 13] Permission denied: 'mine/study.json'" in done.stderr


def test_a_folder_without_results_is_answered_with_those_that_have_some(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refusal, match=r"no results in 'results/linear' that .*; `scaling run` makes some"):
        store.require_results_folder("results/linear")
    (tmp_path / "results" / "rbf").mkdir(parents=True)
    (tmp_path / "results" / "rbf" / "study.json").write_text("{}")
    with pytest.raises(Refusal, match=r"no results in 'results/linear' that .*; there are results/rbf"):
        store.require_results_folder("results/linear")
    assert str(store.require_results_folder("results/rbf")) == "results/rbf"


BIG, HUGE = 10**19, 10**400
IMPOSSIBLE = {
    "trace_seconds": [-1, -1e-9, HUGE, "1", True], "lower_seconds": [-0.1, [1]], "compile_seconds": [-1e9, {}, 1e300],
    "first_seconds": [-1, BIG], "check_seconds": [-1], "sampling_seconds": [-1], "detect_seconds": [-1], "color_seconds": [-1],
    "floor_seconds": [-1e-6, HUGE], "seconds": [[1e-320], [1e300], [BIG], [HUGE], [-1], ["x"], [[1]], [{}]],
    "seconds_min": [[-1], [None], [BIG], [[0.1]], [True]], "turns": [[-1], [True], [BIG], [None], ["3"]],
    "compilations": [[[]], [3], {}],
    "marked": [{"a": None}, {"a": 3}, {"throttled": ["x"]}, {"throttled": [-1]}, {"foreign_load": [True]}, {"a": {}}],
    "collectives": [{"all-reduce": -1}, {"all-reduce": "1"}, {"all-reduce": None}], "colors": [{"rows": -1}, {"rows": 0.5}],
    "passes": [-1, BIG, True], "flops": [-1, 1e31, HUGE], "transcendentals": [-1e-3], "hbm_bytes": [-5.0],
    "peak_bytes": [-1, BIG],
    "temp_bytes": [-1, 0.5], "argument_bytes": [BIG], "output_bytes": [-8], "collective_bytes": [-8], "nonzeros": [-1],
    "error": [-1, 1e40], "tolerance": [-1e-3], "padding": [-0.5], "attempt": [-1, True, BIG], "replicate": [-1, BIG],
    "order": [-1], "slowest_rank": [-1], "calls_per_sample": [-1, True],
}  # fmt: skip


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_record_with_an_impossible_value_is_skipped_and_the_field_is_named(name, tmp_path, make_record):
    good = make_record(points=9)
    for value in IMPOSSIBLE[name]:
        write(tmp_path / "a.jsonl", changed_line(make_record(), **{name: value}), good)
        records, damaged, _ = store.load(tmp_path)
        assert records == [good] and len(damaged) == 1, value
        assert damaged[0].startswith("a.jsonl:1: ") and len(damaged[0]) < 200, value
        assert name in damaged[0] or "sample" in damaged[0], damaged


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1" + "0" * 30])
def test_a_non_finite_or_huge_number_in_a_nested_field_is_damage(token, tmp_path, make_record):
    fields = json.loads(to_line(make_record(before={"load": 0.25}, environment={"load": 0.25})))
    for field in ("environment", "before"):
        line = json.dumps(fields | {field: fields[field] | {"load": "NUMBER"}}).replace('"NUMBER"', token)
        (tmp_path / "a.jsonl").write_text(line)
        records, damaged, _ = store.load(tmp_path)
        assert records == [] and f"{field}.load" in damaged[0]


def test_huge_numbers_are_written_as_null(make_record):
    line = to_line(
        make_record("failed", reason="error", peak_bytes=10**30, environment={"deep": [10**400, -1e300]})
    )
    fields = json.loads(line)
    assert fields["peak_bytes"] is None and fields["environment"]["deep"] == [None, None]
    assert parse_record(line).peak_bytes is None


def test_records_whose_sizes_have_other_names_are_separate_timings(tmp_path, make_record):
    from scaling.analysis import findings

    records = [
        make_record(sizes={name: size}, points=points)
        for name in "ab"
        for size in (3, 5)
        for points in (2, 4)
    ]
    write(tmp_path / "a.jsonl", *records)
    assert len(findings.read(tmp_path).timings) == len(records)


@pytest.mark.parametrize(
    "name, quoted", [("a", "a"), ("my study", "'my study'"), ("-x", "./-x"), ("/-x", "/-x")]
)
def test_a_command_names_a_folder_that_begins_with_a_hyphen_as_a_path(name, quoted):
    assert store.format_command("report", Path(name)) == f"scaling report {quoted}"

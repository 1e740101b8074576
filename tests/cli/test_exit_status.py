"""Tests of the exit status of a run: it depends only on the requested cases in the current environment."""

from scaling.core.case import Case
from scaling.core.record import Writer
from scaling.results.store import load
from scaling.study.completion import complete

TINY = ["run", "study=function", "workload=poisson", "points=16", "devices=1", "mode=jacrev", "results=here"]
SMALL = ["sampling.seconds=0.01", "sampling.most=7", "sampling.warm_up=0.001"]


def test_a_failure_in_another_environment_is_reported_but_does_not_fail_the_run(
    scaling_command, make_record, tmp_path
):
    assert scaling_command([*TINY, *SMALL]).returncode == 0
    case = complete(Case("poisson", points=16, mode="jacrev"))
    assert case.key in {record.key for record in load(tmp_path / "here").records}
    fields = {name: getattr(case, name) for name in ("workload", "target", "sizes", "points", "wrt", "mode")}
    Writer(tmp_path / "here").append(
        make_record(status="failed", digest="another", reason="error", text="long ago", **fields)
    )
    done = scaling_command([*TINY, *SMALL])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 cases to run" in done.stdout and "1 records of other environments" in done.stdout
    assert "long ago" in (tmp_path / "here" / "report" / "index.html").read_text()

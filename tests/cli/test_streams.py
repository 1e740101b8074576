"""A command whose standard streams are closed, full, or read by nobody ends as it would have, without a traceback."""

import os
import shlex
import subprocess
import sys

import pytest

from tests.support.commands import COMMAND, SLOWEST, command_environment
from tests.support.verbs import RUN, VERBS, words_of

pytestmark = pytest.mark.thin(40, "process")

VERBS_AND_HELP = VERBS | {
    "help": ["--help"],
    "version": ["--version"],
    "help of run": ["run", "--help"],
    "none": [],
}
PLUMBING = {
    "stdout closed": ">&-", "both closed": ">&- 2>&-", "all closed": "<&- >&- 2>&-", "nobody reads": "| true",
    "nobody reads either": "2>&1 | true",
}  # fmt: skip


def shell(words, plumbing, cwd, env=None):
    """Run the command in a shell; its own exit status, and what it wrote that came through."""
    line = f"set -o pipefail; {shlex.join([str(COMMAND), *words])} {plumbing}"
    return subprocess.run(
        ["bash", "-c", line],
        cwd=cwd,
        env=command_environment(env),
        capture_output=True,
        text=True,
        timeout=SLOWEST,
    )


@pytest.mark.parametrize("plumbing", ["stdout closed", "nobody reads"])
@pytest.mark.parametrize("verb", VERBS_AND_HELP)
def test_every_verb_ends_as_it_would_without_its_output(verb, plumbing, folders, scaling_command):
    folder, record = folders
    words = words_of(verb, record) if verb in VERBS else VERBS_AND_HELP[verb]
    if verb in ("run", "merge from it"):
        words = [*words, "dry_run=true"] if verb == "run" else [*words[:-1], "second"]
    expected = scaling_command(words)
    if verb == "merge from it":
        words[-1] = "third"
    done = shell(words, PLUMBING[plumbing], folder.parent)
    assert done.returncode == expected.returncode, done.stderr
    assert (
        "Traceback" not in done.stderr and "Exception" not in done.stderr and "BrokenPipe" not in done.stderr
    )


@pytest.mark.parametrize("plumbing", PLUMBING)
def test_bad_input_has_its_exit_status_whatever_the_streams(plumbing, tmp_path):
    done = shell(["report", "nowhere"], PLUMBING[plumbing], tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.process
def test_a_run_whose_reader_leaves_runs_to_its_end(tmp_path):
    words = [*RUN, "results=here"]
    words += ["sampling.seconds=0.01", "sampling.least=3", "sampling.most=3", "api=jit"]
    done = shell(words, "| head -n 1", tmp_path)
    assert done.returncode == 0 and done.stdout.count("\n") == 1, done.stderr
    assert (tmp_path / "here" / "report" / "index.html").exists()


def test_a_file_never_takes_the_place_of_a_closed_stream(tmp_path):
    code = f"""
from scaling.cli import streams
streams.prepare()
number = open({str(tmp_path / "a")!r}, "w").fileno()
print(number > 2, file=open("b", "w"))
"""
    subprocess.run(
        ["bash", "-c", f"exec {shlex.join([sys.executable, '-c', code])} <&- >&- 2>&-"],
        cwd=tmp_path,
        check=True,
    )
    assert (tmp_path / "b").read_text() == "True\n"


def test_a_full_disk_behind_the_output_is_one_line(folders):
    folder, _ = folders
    done = shell(["status", "DIR"], "> /dev/full", folder.parent)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and os.strerror(28) in done.stderr

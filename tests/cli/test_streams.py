"""Tests of closed, full or unread standard streams: the exit status stays the same and there is no traceback."""

import os
import pty
import shlex
import subprocess
import sys

import pytest

from scaling.cli import output
from tests.support.commands import COMMAND, COMMAND_TIMEOUT, command_environment
from tests.support.verbs import RUN, VERBS, verb_arguments

pytestmark = [pytest.mark.thin(40, "process"), pytest.mark.thin(6, "thorough")]

VERBS_AND_HELP = VERBS | {
    "help": ["--help"],
    "version": ["--version"],
    "help of run": ["run", "--help"],
    "no arguments": [],
}
REDIRECTIONS = {
    "stdout closed": ">&-", "both closed": ">&- 2>&-", "all closed": "<&- >&- 2>&-", "stdout unread": "| true",
    "both unread": "2>&1 | true",
}  # fmt: skip


def run_in_shell(arguments, redirection, cwd, env=None):
    """Run the command in a shell with redirections; the exit status is that of the command."""
    line = f"set -o pipefail; {shlex.join([str(COMMAND), *arguments])} {redirection}"
    return subprocess.run(
        ["bash", "-c", line],
        cwd=cwd,
        env=command_environment(env),
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT,
    )


@pytest.mark.parametrize(
    ("verb", "redirection"),
    [(verb, ("stdout closed", "stdout unread")[i % 2]) for i, verb in enumerate(VERBS_AND_HELP)],
)
def test_every_verb_keeps_its_exit_status_without_its_output(verb, redirection, folders, scaling_command):
    folder, record = folders
    arguments = verb_arguments(verb, record) if verb in VERBS else VERBS_AND_HELP[verb]
    if verb == "plan":
        arguments = [*arguments, "where=False"]  # compiles nothing and exits with status 2
    if verb in ("run", "merge from it"):
        arguments = [*arguments, "dry_run=true"] if verb == "run" else [*arguments[:-1], "second"]
    expected = scaling_command(arguments)
    if verb == "merge from it":
        arguments[-1] = "third"
    done = run_in_shell(arguments, REDIRECTIONS[redirection], folder.parent)
    assert done.returncode == expected.returncode, done.stderr
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.parametrize("redirection", REDIRECTIONS)
def test_bad_input_exits_with_status_2_whatever_the_streams(redirection, tmp_path):
    done = run_in_shell(["report", "nowhere"], REDIRECTIONS[redirection], tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.process
def test_a_run_completes_after_the_reader_of_its_output_exits(tmp_path):
    arguments = [*RUN, "results=here"]
    arguments += ["sampling.seconds=0.01", "sampling.least=3", "sampling.most=3", "api=jit"]
    done = run_in_shell(arguments, "| head -n 1", tmp_path)
    assert done.returncode == 0 and done.stdout.count("\n") == 1, done.stderr
    assert (tmp_path / "here" / "report" / "index.html").exists()


def test_a_file_never_gets_the_descriptor_of_a_closed_stream_not_even_in_a_child(tmp_path):
    code = f"""
import os
from scaling.cli import output
output.prepare_streams()
number = open({str(tmp_path / "a")!r}, "w").fileno()
print(number > 2 and all(map(os.get_inheritable, range(3))), file=open("b", "w"))
"""
    subprocess.run(
        ["bash", "-c", f"exec {shlex.join([sys.executable, '-c', code])} <&- >&- 2>&-"],
        cwd=tmp_path,
        check=True,
    )
    assert (tmp_path / "b").read_text() == "True\n"


@pytest.mark.parametrize("arguments", [["status", "DIR"], ["run", "--cfg", "job"]], ids=["status", "run"])
def test_a_full_output_device_is_reported_in_one_line(arguments, folders):
    folder, _ = folders
    done = run_in_shell(arguments, "> /dev/full", folder.parent)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and os.strerror(28) in done.stderr


def test_output_to_a_closed_terminal_is_discarded_like_output_to_a_closed_pipe():
    controller, terminal = pty.openpty()
    stream = output._open_text_stream(terminal, None)
    os.close(controller)  # as when a window or an ssh session ends and `disown` kept the command alive
    print("progress", file=stream, flush=True)
    print("more", file=stream, flush=True)
    assert os.readlink(f"/proc/self/fd/{terminal}") == os.devnull
    os.close(terminal)


@pytest.mark.parametrize("option", ["--watch", "--w"])
def test_watch_ends_when_the_reader_of_its_output_has_ended_also_if_the_option_is_abbreviated(
    option, monkeypatch
):
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "argv", ["scaling", "status", "here", option])
    stream = output._open_text_stream(writer, None)
    with pytest.raises(BrokenPipeError):
        print("progress", file=stream, flush=True)
    stream.flush()
    os.close(writer)

"""The README keeps its promises: its files are written and its commands are run as they stand there."""

import re

import pytest

from tests.support.paths import TOP

README = (TOP / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    line.split("   ")[0].strip()
    for kind, text in BLOCKS
    if kind == "bash"
    for line in text.splitlines()
    if line.startswith("scaling ")
]
SMALL = [
    "sampling.seconds=0.02",
    "sampling.most=7",
    "sampling.warm_up=0.001",
]  # the same commands, sampled less
FEW = ["replicates=2"]  # pairs of processes, where two sides are compared
PLANNED = ['where=\'workload in ["poisson", "linear"] and mode == "jacrev"\'']  # some of its cases


@pytest.fixture(scope="session")
def reader(tmp_path_factory):
    """A folder with the files that the README shows, under the names that it gives them."""
    folder = tmp_path_factory.mktemp("reader")
    for kind, text in BLOCKS:
        if kind in ("yaml", "python"):
            path = folder / text.splitlines()[0].removeprefix("# ")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return folder


def test_the_readme_shows_a_study_a_function_and_commands():
    assert {kind for kind, _ in BLOCKS} == {"bash", "yaml", "python"}
    assert len(COMMANDS) >= 6


def test_its_own_examples_are_about_ten_lines():
    assert all(text.count("\n") <= 14 for kind, text in BLOCKS if kind in ("yaml", "python"))


def tier_of(command):
    """Return the tier that a command of the README belongs to."""
    if "cluster=slurm" in command or "results/smoke" in command:  # what the first leaves, the other reads
        return "slurm"
    return "plan" if "hardware=v5p" in command or "hardware=h100" in command else "process"


@pytest.mark.parametrize(
    "command", [pytest.param(each, marks=getattr(pytest.mark, tier_of(each))) for each in COMMANDS]
)
def test_a_command_of_the_readme_does_what_it_says(command, reader, scaling_command):
    words = [word.strip("'") for word in command.split()[1:]]
    if words[0] == "plan":
        words += PLANNED
    if tier_of(command) == "slurm":
        words += ["wait=true"] if words[0] == "run" else []
    if words[0] == "run" and not any("=true" in word or word == "--help" for word in words):
        words += SMALL + (FEW if any(word.startswith("versus=") for word in words) else [])
    done = scaling_command(words, cwd=reader, anew=True)
    least = (0, 1) if words[0] == "compare" else (0,)  # now and then chance alone shows a difference
    assert done.returncode in least, done.stdout + done.stderr
    assert done.stdout.strip()
    if words[0] == "run" and "--help" not in words and "dry_run=true" not in words:
        assert "0 failed" in done.stdout
        assert re.search(r"report: (\S+index\.html)", done.stdout)


def test_every_script_and_file_that_it_names_exists():
    for name in re.findall(r"\]\((?!http)([^)#]+)\)|^(scripts/\w+)", README, re.MULTILINE):
        assert (TOP / (name[0] or name[1])).exists(), name

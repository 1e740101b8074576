"""The pages of docs/ keep their promises: what they show runs, what they name exists, and each fits a screen."""

import re

import pytest

from tests.support.paths import TOP

PAGES = {path.stem: path.read_text() for path in sorted((TOP / "docs").glob("*.md"))}
ASKED = ("rbf", "linear", "residual", "poisson")
SMALL = ["sampling.seconds=0.02", "sampling.most=7", "sampling.warm_up=0.001"]


def blocks(page, kind):
    return re.findall(rf"```{kind}\n(.*?)```", PAGES[page], re.DOTALL)


def commands(page):
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
    return [line.split("  #")[0].split()[1:] for line in lines if line.startswith("scaling ")]


@pytest.mark.process
@pytest.mark.parametrize(
    ("page", "command"),
    [(page, c) for page in ("adding_a_workload", "adding_a_peer") for c in commands(page)],
    ids=str,
)
def test_what_is_added_as_the_page_says_is_measured_and_right(page, command, scaling_command, tmp_path):
    for block in blocks(page, "python"):
        name = block.split(":")[0].removeprefix("# ")
        (tmp_path / name).write_text(block)
    done = scaling_command([*command, "points=8", "devices=1", *SMALL], env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout and " ok " in done.stdout


@pytest.mark.parametrize("page", ASKED)
def test_each_question_has_a_page_with_one_command_a_figure_and_no_more_than_a_screen(page):
    assert commands(page) == [["run", f"study={page}"]]
    assert (TOP / "conf" / "study" / f"{page}.yaml").exists()
    assert re.search(rf"!\[.+\]\({page}\.png\)", PAGES[page])
    assert len(PAGES[page].splitlines()) < 30


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_links_to_or_calls_exists(page):
    for name in re.findall(r"\]\((?!http)([^)#]+)\)", PAGES[page]):
        assert (TOP / "docs" / name).exists(), name
    for name in re.findall(r"scripts/(\w+)", PAGES[page]):
        assert (TOP / "scripts" / name).exists(), name
    for name in re.findall(r"scripts/bench (\w+)", PAGES[page]):
        assert (TOP / "scripts" / "benchmarks" / f"{name}.py").exists(), name

"""Tests of the pages: examples run, links lead somewhere, and each page of a question fits on a screen."""

import re

import pytest

import scaling
from tests.support import made_up
from tests.support.paths import TOP

PAGES = {path.stem: path.read_text() for path in sorted((TOP / "docs").glob("*.md"))}
ALL_PAGES = [
    *TOP.glob("*.md"),
    *(TOP / folder / "README.md" for folder in ("examples", "tests")),
    *TOP.glob("docs/*.md"),
]
QUESTIONS = ("rbf", "linear", "residual", "poisson")
SMALL = ["sampling.seconds=0.02", "sampling.most=7", "sampling.warm_up=0.001"]
SOME = ["points=8", "devices=1", "where='api == \"jit\"'"]  # cases of a study


def code_blocks(page, kind):
    return re.findall(rf"```{kind}\n(.*?)```", PAGES[page], re.DOTALL)


def commands(page):
    lines = [line for block in code_blocks(page, "bash") for line in block.splitlines()]
    return [line.split("  #")[0].split()[1:] for line in lines if line.startswith("scaling ")]


@pytest.mark.process
@pytest.mark.thin(2, "thorough")
@pytest.mark.parametrize(
    ("page", "command"),
    [(page, c) for page in ("adding_a_workload", "adding_a_peer") for c in commands(page)],
    ids=str,
)
def test_the_example_of_a_page_runs_without_failures(page, command, scaling_command, tmp_path):
    for block in code_blocks(page, "python"):
        name = block.split(":")[0].removeprefix("# ")
        (tmp_path / name).write_text(block)
    no_peaks = ["study.ceilings=false"] if "study=rbf" in command else []
    done = scaling_command([*command, *SOME, *SMALL, *no_peaks], env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout and " ok " in done.stdout


def test_the_code_of_the_notebook_page_prints_the_expected_rows(tmp_path, monkeypatch, capsys, make_record):
    rows = [
        make_record(
            mode=mode, devices=d, seconds=[s / d * (1 + 0.001 * (5 * i % 7)) for i in range(7)], replicate=k
        )
        for mode, s in (("jacfwd", 1.0), ("jacrev", 3.0))
        for d in (1, 2)
        for k in range(2)
    ]
    made_up.write(tmp_path / "results" / "linear", rows, scaling=["strong"])
    monkeypatch.chdir(tmp_path)
    (code,) = code_blocks("notebook", "python")
    assert len([line for line in code.splitlines() if line]) <= 5
    exec(compile(code, "notebook.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.count("jacfwd") == 4 and "jacrev" not in printed and printed.count("sure") == 4


def test_the_notebook_page_documents_the_columns_of_the_table(tmp_path, make_record):
    frame = scaling.load(made_up.write(tmp_path, [make_record()], scaling=["strong"]))
    documented = set(re.findall(r"`([a-z_.]+)`", PAGES["notebook"]))
    assert {"key", "median", "low", "high", "samples", "kind", "speedup", "efficiency", "against_jit", "certainty",
            "baseline_devices", "honest", "nodes", "sizes.p"} <= documented & set(frame)  # fmt: skip


@pytest.mark.parametrize("page", QUESTIONS)
def test_each_question_has_a_short_page_with_one_command_and_a_figure(page):
    assert commands(page) == [["run", f"study={page}"]]
    assert (TOP / "conf" / "study" / f"{page}.yaml").exists()
    assert re.search(rf"!\[.+\]\({page}\.png\)", PAGES[page])
    assert len(PAGES[page].splitlines()) < 30


def anchors(text):
    """Return the anchors of the headings of a page, as GitHub forms them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", ALL_PAGES, ids=lambda path: str(path.relative_to(TOP)))
def test_files_anchors_and_scripts_named_on_a_page_exist(path):
    text = path.read_text()
    for name, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text):
        target = path.parent / name if name else path
        assert target.exists(), name
        assert not anchor or anchor in anchors(target.read_text()), f"{name}#{anchor}"
    for name in re.findall(r"scripts/(\w+)", text):
        assert (TOP / "scripts" / name).exists(), name
    for name in re.findall(r"scripts/bench (\w+)", text):
        assert (TOP / "scripts" / "benchmarks" / f"{name}.py").exists(), name

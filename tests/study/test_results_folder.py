"""Tests of `results=PATH`: only a new, an empty or a results folder is accepted, and the path stays as it is written."""

import pytest

from scaling.core.case import Refusal
from scaling.results.store import parse_results_folder, refuse_other_files
from scaling.study.configuration import compose

FOREIGN = [["thesis.tex"], ["report/index.html"], ["wandb/settings"], ["a/study.json", "a/b.jsonl"]]
ACCEPTED = [[], [".lock"], ["study.json", "thesis.tex"], ["a.jsonl", "notes"], ["versus-self/study.json"]]


def write_files(folder, names):
    for path in (folder / name for name in names):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@pytest.mark.parametrize("names", FOREIGN)
def test_a_folder_with_other_files_than_results_is_rejected(names, tmp_path):
    write_files(tmp_path, names)
    with pytest.raises(
        Refusal, match="is not empty and holds no results: give a new folder with results=PATH"
    ):
        parse_results_folder(str(tmp_path))
    with pytest.raises(Refusal, match="give a new folder with --output PATH"):
        refuse_other_files(tmp_path, "--output ")


@pytest.mark.parametrize("names", ACCEPTED)
def test_a_new_folder_and_one_with_results_are_accepted(names, tmp_path):
    write_files(tmp_path, names)
    assert [parse_results_folder(str(path)) for path in (tmp_path, tmp_path / "new")] == [
        tmp_path,
        tmp_path / "new",
    ]


@pytest.mark.parametrize("path", ["2024_11_26", "1e3", "010", "0x10", "true", "a=b", "it's", "größe", "a(b)"])
def test_the_name_of_a_results_folder_stays_as_it_is_written(path):
    config, _ = compose(["study=linear", f"results={path}"])
    assert config["results"] == path


def test_a_results_folder_may_contain_the_name_of_the_study():
    config, _ = compose(["study=linear", "results=a/${hydra:runtime.choices.study}"])
    assert config["results"] == "a/linear"

"""The planted defects (scripts/plant_defects): none is planted silently nowhere, and each names a test that there is."""

import pytest

from scripts.defects import plant
from scripts.defects.plant import Defect

TABLE = plant.read_table()


def package(folder, **files):
    (folder / plant.PACKAGE).mkdir()
    for name, text in files.items():
        (folder / plant.PACKAGE / f"{name}.py").write_text(text)
    return folder


def test_the_file_of_a_defect_is_found_by_its_text(tmp_path):
    top = package(tmp_path, one="a = 1\n", other="b = 2\n")
    assert str(plant.find_place(Defect("d", "", "b = 2", "b = 3"), top)) == "scaling/other.py"


@pytest.mark.parametrize(
    ("text", "words"), [("c = 1", "occurs nowhere"), ("a = 1", "2 times in scaling/one.py")]
)
def test_a_text_that_stands_nowhere_or_twice_is_refused(tmp_path, text, words):
    top = package(tmp_path, one="a = 1\na = 1\n")
    with pytest.raises(ValueError, match=words):
        plant.find_place(Defect("d", "", text, "b = 2"), top)


def test_a_defect_that_is_no_python_is_refused(tmp_path):
    with pytest.raises(SyntaxError):
        plant.find_place(Defect("d", "", "a = 1", "a = ("), package(tmp_path, one="a = 1\n"))


def test_the_table_has_twenty_defects_or_more_and_each_changes_something():
    assert len(TABLE) >= 20
    assert all(defect.old != defect.new and defect.breaks for defect in TABLE)


@pytest.mark.parametrize("defect", TABLE, ids=lambda defect: defect.name)
def test_the_test_that_finds_a_defect_is_there(defect):
    assert defect.found_by is None or plant.files_with(defect.found_by)


@pytest.mark.contract
@pytest.mark.parametrize("defect", TABLE, ids=lambda defect: defect.name)
def test_every_defect_has_its_place_in_the_package(defect):
    assert plant.find_place(defect).parts[0] == plant.PACKAGE


def test_only_a_test_that_passes_without_the_defect_has_found_it():
    copies = plant.Copies(plant.TOP, 1.0, {"tests/a.py::test_b[x - y]": True, "tests/a.py::test_c": False})
    for failed, test in (
        (("tests/a.py::test_c", "tests/a.py::test_b[x - y]"), "tests/a.py::test_b[x - y]"),
        (("tests/a.py::test_c",), None),
        (("tests/a.py",), None),
    ):
        found, why = plant.first_finding(plant.Run(False, failed, False, ""), copies)
        assert found == test and bool(why) == (test is None)

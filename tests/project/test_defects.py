"""Tests of the table of planted defects (scripts/plant_defects): each has a unique location and names an existing test."""

import pytest

from scripts.defects import plant
from scripts.defects.plant import Defect

TABLE = plant.read_table()


def write_package(folder, **files):
    (folder / plant.PACKAGE).mkdir()
    for name, text in files.items():
        (folder / plant.PACKAGE / f"{name}.py").write_text(text)
    return folder


def test_a_defect_is_located_by_its_text(tmp_path):
    top = write_package(tmp_path, one="a = 1\n", other="b = 2\n")
    assert str(plant.find_place(Defect("d", "", "b = 2", "b = 3"), top)) == "scaling/other.py"


@pytest.mark.parametrize(
    ("text", "message"), [("c = 1", "occurs nowhere"), ("a = 1", "2 times in scaling/one.py")]
)
def test_a_text_that_occurs_nowhere_or_twice_is_rejected(tmp_path, text, message):
    top = write_package(tmp_path, one="a = 1\na = 1\n")
    with pytest.raises(ValueError, match=message):
        plant.find_place(Defect("d", "", text, "b = 2"), top)


def test_a_defect_with_invalid_syntax_is_rejected(tmp_path):
    with pytest.raises(SyntaxError):
        plant.find_place(Defect("d", "", "a = 1", "a = ("), write_package(tmp_path, one="a = 1\n"))


def test_the_table_has_at_least_20_defects_and_each_changes_its_text():
    assert len(TABLE) >= 20
    assert all(defect.old != defect.new and defect.breaks for defect in TABLE)


@pytest.mark.parametrize("defect", TABLE, ids=lambda defect: defect.name)
def test_the_test_that_detects_a_defect_exists(defect):
    assert defect.found_by is None or plant.files_with(defect.found_by)


@pytest.mark.thorough
@pytest.mark.parametrize("defect", TABLE, ids=lambda defect: defect.name)
def test_every_defect_has_a_location_in_the_package(defect):
    assert plant.find_place(defect).parts[0] == plant.PACKAGE


def test_only_a_test_that_passes_without_the_defect_detects_it():
    copies = plant.Copies(plant.TOP, 1.0, {"tests/a.py::test_b[x - y]": True, "tests/a.py::test_c": False})
    for failed, test in (
        (("tests/a.py::test_c", "tests/a.py::test_b[x - y]"), "tests/a.py::test_b[x - y]"),
        (("tests/a.py::test_c",), None),
        (("tests/a.py",), None),
    ):
        detecting, explanation = plant.first_finding(plant.Run(False, failed, False, ""), copies)
        assert detecting == test and bool(explanation) == (test is None)

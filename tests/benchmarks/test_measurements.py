"""Every file in `measurements/` is credible, and of another run; the pictures are drawn from what is committed."""

import json
import re

import pytest
from benchmarks.__main__ import main
from benchmarks.tables import measurements, pictures
from jsonschema import validate

from shoestring.base.errors import UsageError
from shoestring.runs.measurement.file import text_of
from shoestring.runs.measurement.of_run import measurement_of
from shoestring.runs.measurement.problems import same_runs
from tests.runs.measurement.runs import directory, session


def test_files_are_credible_and_of_different_runs():
    assert list(same_runs(measurements.measurements())) == []


def test_measurement_reaches_the_page_and_the_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(measurements, "FOLDER", tmp_path)
    assert measurements.users() == measurements.NONE
    before = pictures.memory()
    content = measurement_of(directory(tmp_path / "run", session(1, 0)))
    (tmp_path / "ann-t4.json").write_text(text_of(content))
    row = measurements.users().splitlines()[-1]
    assert [cell.strip() for cell in row.split("|")][1:-1][3:] == ["920", "-2.2%", "240.0", "-16.7%"]
    drawn = pictures.memory()
    assert "T4 · users, fp16" in drawn and "ann-t4: -2.2%" in drawn and drawn != before
    (tmp_path / "ann-t4.json").write_text(text_of(content | {"date": "2026-11-01"}))
    with pytest.raises(UsageError, match="not credible"):
        measurements.users()


def test_dot_is_red_where_the_range_does_not_hold_the_measurement():
    points = [pictures.Point(name=name, value=0.1, low=low, high=0.2) for name, low in (("in", -0.1), ("out", 0.05))]
    drawn = pictures._picture("title", {"group": points}, limit=0.4)
    dots = dict(re.findall(r'<circle [^>]*class="(\w+)"><title>(\w+)', drawn))
    assert dots == {"dot": "in", "outside": "out"}


def test_schema_describes_the_file(tmp_path):
    from docs.generate.measurement_schema import schema

    validate(measurement_of(directory(tmp_path / "run", session(1, 0))), json.loads(schema()))


def test_command_that_writes_the_tables_names_a_false_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(measurements, "FOLDER", tmp_path)
    (tmp_path / "invented.json").write_text("{}")
    assert main(["tables", "--check"]) == 1
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'invented.json'} ")

"""Comparison of single convolutions with timings: reading of both files, and the table."""

import csv
import gzip
from pathlib import Path
from zipfile import ZipFile

import pytest
from benchmarks.time import convolutions

from shoestring.planning.estimate.rates import MEASURED_RATES

MAIN = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'


def sheet(rows: list[dict[str, str]], strings: list[str]) -> str:
    lines = []
    for number, row in enumerate(rows, 1):
        cells = "".join(
            f'<c r="{column}{number}" t="s"><v>{strings.index(text)}</v></c>'
            if text in strings
            else f'<c r="{column}{number}"><v>{text}</v></c>'
            for column, text in row.items()
        )
        lines.append(f"<row>{cells}</row>")
    return f"<worksheet {MAIN}><sheetData>{''.join(lines)}</sheetData></worksheet>"


def write_deepbench(path: Path) -> None:
    """Write a file of two sheets with one convolution each: 7 x 7 of 3 channels, whose input has no gradient."""
    strings = ["Convolution", "Recurrent Layers", "N/A*", "Vision"]
    sizes = dict(zip("CDEFGHIJKLM", ("224", "112", "3", "16", "64", "7", "5", "3", "2", "2", "1"), strict=True))
    row = {"B": "Vision", **sizes, "N": "1.2", "O": "N/A*", "P": "2.4"}
    rows = [{"A": "Convolution"}, {"C": "Vision"}, row, {"A": "Recurrent Layers"}, row]
    with ZipFile(path, "w") as archive:
        texts = "".join(f"<si><t>{text}</t></si>" for text in strings)
        archive.writestr("xl/sharedStrings.xml", f"<sst {MAIN}>{texts}</sst>")
        names = "".join(f'<sheet name="{name}"/>' for name in convolutions._SHEETS)
        archive.writestr("xl/workbook.xml", f"<workbook {MAIN}><sheets>{names}</sheets></workbook>")
        for number in (1, 2):
            archive.writestr(f"xl/worksheets/sheet{number}.xml", sheet(rows, strings))


def test_deepbench_rows_become_timings(tmp_path: Path) -> None:
    write_deepbench(tmp_path / "timings.xlsx")
    full, _, half, gradient = convolutions.deepbench(tmp_path / "timings.xlsx")
    assert (full.precision, full.direction, full.seconds) == ("fp32", "forward", pytest.approx(1.2e-3))
    # The columns are widths before heights: an image of 112 x 224 and a kernel of 5 x 7, with a stride of 1 x 2.
    assert full.shape == (1, 16 * 112 * 112, 64, 3 * 35, 5, 7, 112, 112, 1, 2, 0)
    assert half.shape == (1, 16 * 112 * 112, 64, 8 * 35, 5, 7, 112, 112, 1, 2, 1)
    assert (gradient.direction, gradient.kind) == ("weight", "fp16 weight, larger, strided")


def test_deepbench_is_compared_with_the_fastest_algorithms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_deepbench(tmp_path / "timings.xlsx")
    outputs = []
    for device in ("t4", "v100"):
        assert convolutions.main(["--device", device, "--deepbench", str(tmp_path / "timings.xlsx")]) == 0
        outputs.append(capsys.readouterr().out.splitlines())
    assert len(outputs[0]) == len(outputs[1]) and outputs[0][1:3] != outputs[1][1:3]


def test_table_has_the_error_of_each_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"Input_Size": 28, "Kernel_Szie": 3, "Stride": 1, "Padding": 1, "Input_Channel": 64, "Output_Channel": 64}
    with gzip.open(tmp_path / "conv.csv.gz", "wt", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*row, "B", "Latency"])
        writer.writeheader()
        writer.writerow({**row, "B": 16, "Latency": 1e-6})
        writer.writerow({**row, "B": 16, "Latency": 2.0})
    [_, timing] = convolutions.neusight(tmp_path / "conv.csv.gz")
    assert convolutions.main(["--neusight", str(tmp_path / "conv.csv.gz")]) == 0
    _, _, line = capsys.readouterr().out.splitlines()
    ratio = timing.seconds / timing.estimate(MEASURED_RATES["t4"])
    error = abs(1 / ratio - 1)
    assert line.split() == ["fp32", "forward,", "3", "x", "3", "1", *2 * [f"{ratio:.2f}"], *2 * [f"{error:.0%}"]]

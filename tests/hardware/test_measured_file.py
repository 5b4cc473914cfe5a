"""The file of measured rates: written at once, read strictly."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoestring.base.errors import RunError, UsageError
from shoestring.hardware.measured import MeasuredRates
from shoestring.hardware.measured_file import (
    MAX_BYTES,
    content,
    has_rates,
    read_measured,
    require_space,
    write_measured,
)
from tests.hardware.measured_files import CPU, GPU, UNLISTED, write


@pytest.mark.parametrize("measured", [GPU, UNLISTED, CPU], ids=lambda measured: measured.device.name)
def test_what_was_written_is_read(tmp_path: Path, measured: MeasuredRates) -> None:
    path = write(tmp_path, measured)
    assert read_measured(path) == replace(measured, file=str(path))
    assert [file.name for file in tmp_path.iterdir()] == ["rates.json"]


def test_source_names_device_date_and_file(tmp_path: Path) -> None:
    path = write(tmp_path, CPU)
    assert read_measured(path).source == f"kernels measured on A CPU on 2026-11-24 ({path})"


def test_noise_is_that_of_the_typical_timing() -> None:
    noisy = replace(CPU.operators[0], high=100.0)
    assert replace(CPU, operators=(noisy, *CPU.operators[1:])).noise == pytest.approx((0.9, 1.2))


def test_summary_has_the_highest_rates() -> None:
    summary = GPU.summary()
    assert (summary["products, fp32"], summary["products, fp16"]) == ("4,000 GFLOP/s", "20,000 GFLOP/s")
    assert summary["memory, add, fp32"] == "200 GB/s" and summary["host to device"] == "10.0 GB/s"
    assert json.loads(json.dumps(GPU.json()))["device"]["gpus"] == 2


def test_unwritable_file_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "taken"
    (folder / "rates.json").mkdir(parents=True)
    with pytest.raises(RunError, match=r"rates\.json cannot be written"):
        write_measured(folder / "rates.json", CPU)
    assert [file.name for file in folder.iterdir()] == ["rates.json"]


def changed(*path: str | int, to: Any) -> dict[str, Any]:
    """Return the content of a file with another value at `path`, or without the key if it is None."""
    values: dict[str, Any] = json.loads(json.dumps(content(GPU)))
    parent: Any = values
    for key in path[:-1]:
        parent = parent[key]
    if to is None:
        del parent[path[-1]]
    else:
        parent[path[-1]] = to
    return values


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (changed("format", to="other"), "has no measured rates"),
        ([], "has no measured rates"),
        (changed("version", to=2), "has version '2' of the format, and this program reads 1"),
        (changed("extra", to=1), "'extra' is unknown"),
        (changed("host", to=None), "host is missing"),
        (changed("date", to="a\nb"), "date: 'a\\nb' is not a line"),
        (changed("warnings", to=["x"] * 21), "warnings: 21 are not a list of at most 20 texts"),
        (changed("warnings", to=[1]), "warnings: '1' is not text"),
        (changed("versions", "torch", to=2), "versions: '2' is not text"),
        (changed("device", "title", to=3), "device: title: '3' is not text"),
        (changed("device", "kind", to="tpu"), "device: kind: 'tpu' is not one of cuda, cpu"),
        (changed("device", "kind", to="cpu"), "device: compute_capability and gpus are those of a GPU"),
        (changed("device", "compute_capability", to=[7]), "compute_capability: '[7]' is not null or a list of two"),
        (changed("device", "memory_bytes", to=5), "device: memory_bytes: 5 is not between 1 MiB and 1 PiB"),
        (changed("device", "gpus", to=1000), "device: gpus: 1000 are more than 64"),
        (changed("host", "view", to=None), "host: view is missing"),
        (changed("host", "other", to=1), "host: 'other' is unknown"),
        (changed("host", "view", "seconds", to="x"), "host: view: seconds: 'x' is not a number of seconds"),
        (changed("host", "view", "seconds", to=0), "host: view: seconds: '0' is not a number of seconds"),
        (changed("host", "view", "seconds", to=1), "host: view: seconds: 1 is not between low and high"),
        (changed("operators", to=[]), "operators: there is no aten::mm in fp32"),
        (changed("operators", 0, to=3), "operators: number 1: '3' is not an object"),
        (changed("operators", 0, "precision", to="fp8"), "number 1: precision: 'fp8' is not one of"),
        (changed("operators", 0, "layout", to="rows"), "number 1: layout: 'rows' is not one of"),
        (changed("operators", 0, "shape", to=[1, 2, 0, 4]), "number 1: shape: [1, 2, 0, 4] is not empty, and neither"),
        (changed("operators", 0, "shape", to=[1] * 5), "number 1: shape: [1, 1, 1, 1, 1] is not empty, and neither"),
        (changed("operators", 0, "shape", to=[1.5] * 4), "number 1: shape: '[1.5, 1.5, 1.5, 1.5]' is not a list"),
        (changed("operators", 0, "shape", to=[]), "number 1: shape is empty"),
        (changed("operators", 0, "flops", to=0), "number 1: flops has to be at least 1 for 'aten::mm'"),
        (changed("operators", 0, "bytes", to=0), "number 1: bytes and launches have to be at least 1"),
        (changed("copies", 0, "kind", to="up"), "copies: number 1: kind: 'up' is not one of"),
    ],
)  # fmt: skip
def test_damaged_file_is_one_error_with_path_and_field(tmp_path: Path, values: Any, problem: str) -> None:
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(values))
    with pytest.raises(UsageError) as error:
        read_measured(path)
    assert str(path) in error.value.message and problem in str(error.value)
    assert error.value.hint == "name a file that shoestring check --measure has written"


@pytest.mark.parametrize("text", ["", "{", "[1", '{"format": NaN}', "\0"])
def test_what_is_no_json_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rates.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"rates\.json cannot be read"):
        read_measured(path)


def test_missing_large_and_special_files_are_errors(tmp_path: Path) -> None:
    large = tmp_path / "large.json"
    large.touch()
    os.truncate(large, MAX_BYTES + 1)
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("missing", "large", "pipe"):
        with pytest.raises(UsageError, match=rf"{name}\.json cannot be read"):
            read_measured(tmp_path / f"{name}.json")


def test_problems_are_at_most_ten(tmp_path: Path) -> None:
    values = changed("operators", to=[math.pi] * 100)
    (tmp_path / "rates.json").write_text(json.dumps(values))
    with pytest.raises(UsageError) as error:
        read_measured(tmp_path / "rates.json")
    assert len(error.value.problems) == 10


@pytest.mark.parametrize(
    ("number", "name", "to"),
    [(0, "operator", {}), (3, "shape", [*[1] * 10, "1"]), (3, "shape", [*[1] * 10, None])],
)
def test_values_of_wrong_types_are_an_error(tmp_path: Path, number: int, name: str, to: object) -> None:
    file = tmp_path / "rates.json"
    values = json.loads(json.dumps(content(GPU)))
    values["operators"][number][name] = to
    file.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(UsageError, match="damaged"):
        read_measured(file)


def test_rates_beyond_any_device_are_an_error(tmp_path: Path) -> None:
    file = tmp_path / "rates.json"
    values = content(GPU)
    values["operators"][0]["flops"] = 2**52
    file.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(UsageError) as error:
        read_measured(file)
    assert "more than any device computes" in str(error.value.problems)


def test_only_a_file_of_rates_has_rates(tmp_path: Path) -> None:
    rates, other = tmp_path / "rates.json", tmp_path / "plan.json"
    write_measured(rates, GPU)
    other.write_text("{}", encoding="utf-8")
    assert has_rates(rates) and not has_rates(other)
    require_space(other)
    assert other.read_text(encoding="utf-8") == "{}" and sorted(tmp_path.iterdir()) == [other, rates]

"""The measurement of this machine's CPU, with the smallest grid: what is in the file, not how fast it is."""

import os
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shoestring import api
from shoestring.base.errors import RunError, UsageError
from shoestring.hardware.measured_file import read_measured, write_measured
from shoestring.hardware.probe import local_cpu
from shoestring.hardware.targets import find
from shoestring.planning.estimate.measured_rates import rates_of
from shoestring.runs.check import preflight
from shoestring.runs.check.collect import collect_facts
from shoestring.runs.check.rates import grid, host, measure, writing
from shoestring.runs.check.rates.clock import repeats_for, summarize
from shoestring.runs.check.rates.measure import busy_warnings, measure_rates
from shoestring.runs.check.rates.operators import Operands, subjects
from tests.hardware.measured_files import CPU


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "CPU", grid.SMALLEST)


def test_command_writes_a_file_that_is_a_target(small, run_command, tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    status, out, err = run_command("check", "--measure", path, "--on", "cpu")
    assert status == 0 and "left" in err
    assert f"planwiththem:shoestringplanRECIPE--on{path}" in "".join(out.split())  # the path may be divided
    measured = read_measured(path)
    assert measured.device.title == local_cpu().device.title and measured.versions["torch"] == torch.__version__
    names = {row.operator for row in measured.operators}
    assert {"aten::mm", "aten::bmm", "aten::convolution_backward", "aten::native_dropout"} < names
    assert {"shoestring::recurrent", "shoestring::recurrent_backward", "aten::gelu_backward"} < names
    assert all(row.flops for row in measured.operators if "dot_product" in row.operator)
    assert rates_of(find(str(path)).device)
    assert [file.name for file in tmp_path.iterdir()] == ["cpu.json"]
    # It is not replaced without being asked for.
    status, _, err = run_command("check", "--measure", path, "--on", "cpu")
    assert status == 2 and "exists" in err and "--overwrite" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("temporal", "--measure", "x.json"), "--measure measures the machine alone"),
        (("--measure", "x"), "x does not end with .json"),
        (("--measure", "x.json", "--on", "t4"), "only this machine can be measured, not t4"),
        (("--measure", "nothing/x.json"), "nothing is not a folder"),
        (("--overwrite",), "--overwrite is an option of --measure"),
    ],
)
def test_invalid_usage_is_an_error(run_command, arguments: tuple[str, ...], message: str) -> None:
    status, _, err = run_command("check", *arguments)
    assert status == 2 and message in err


def test_interrupted_measurement_leaves_no_file(small, tmp_path: Path) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.measure(tmp_path / "cpu.json", "cpu", progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_older_file_is_replaced_if_asked_for(small, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    path.write_text("older")
    calls = []
    monkeypatch.setattr(measure, "measure_rates", lambda *_, **__: calls.append(1))
    with pytest.raises(UsageError, match="exists"):
        writing.measure_to_file(path, "cpu", overwrite=False, progress=print)
    assert not calls and path.read_text() == "older"


def test_use_by_others_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 9.0, 9.0))
    assert busy_warnings(local_cpu()) == ()
    monkeypatch.setattr(os, "getloadavg", lambda: (64.0, 0.0, 0.0))
    (warning,) = busy_warnings(local_cpu())
    assert "the CPU was in use" in warning and "64.0" in warning


def test_grids_have_16_bit_types_and_both_memory_formats_on_gpus() -> None:
    plain = list(subjects(grid.CPU, ("fp32",)))
    both = list(subjects(grid.GPU, ("fp32", "fp16")))
    assert {subject.layout for subject in plain} == {"", "channels_first"}
    assert {(subject.precision, subject.layout) for subject in both if subject.layout} == {
        ("fp32", "channels_first"), ("fp16", "channels_first"), ("fp16", "channels_last")
    }  # fmt: skip
    assert len(plain) < 700 and len(both) < 1500


def test_rounds_end_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[float] = []
    measured = measure_rates(local_cpu(), grid=grid.SMALLEST, progress=left.append)
    assert measured.operators[0].low <= measured.operators[0].seconds <= measured.operators[0].high
    assert all(seconds >= 0 for seconds in left)


def test_memory_of_a_graph_lives_as_long_as_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def replay() -> None:
        assert all(tensor() is not None for tensor in written), "a replay would write to memory of others"

    written: list[weakref.ref[torch.Tensor]] = []

    def record(*size: int, device: torch.device) -> torch.Tensor:
        tensor = torch.ones(*size, device=device)
        written.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(host, "wait", lambda _: None)
    monkeypatch.setattr(torch, "zeros", record)
    monkeypatch.setattr(host, "cuda_capture", lambda: lambda work: (work(), replay))
    launch = host._KernelGraph(torch.device("cpu")).replay
    launch()
    assert len(written) == 1


def test_operands_are_parts_of_one_buffer() -> None:
    take = Operands(torch.device("cpu"), torch.float32, 256)
    first, second = take(2, 50), take(100)
    assert first.shape == (2, 50) and second.data_ptr() - first.data_ptr() == 4 * 128
    assert take(100).data_ptr() == first.data_ptr()  # nothing is left: from the start again


def test_short_calls_are_repeated() -> None:
    calls: list[int] = []
    assert repeats_for(lambda: calls.append(1), 0.001, torch.device("cpu")) > 100
    assert summarize([3.0, 1.0, 2.0]).seconds == 2.0


def test_only_a_file_of_rates_is_replaced(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match="no measured rates"):
        writing.measure_to_file(plan, "cpu", overwrite=True, progress=print)
    assert plan.read_text(encoding="utf-8") == "{}"


def test_folder_that_cannot_be_written_is_noticed_before_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "measure_rates", lambda *_, **__: pytest.fail("it was measured"))
    with pytest.raises(RunError, match="cannot be written"):
        writing.measure_to_file(Path("/proc/rates.json"), "cpu", overwrite=False, progress=print)


def test_check_uses_the_rates_of_this_machine_and_says_if_it_cannot(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    for title, is_here in ((local_cpu().device.title, True), ("Another CPU", False)):
        write_measured(path, replace(CPU, device=replace(CPU.device, title=title)))
        facts = collect_facts(str(path), tmp_path, None)
        assert bool(facts.target.device.measured) is is_here
        assert bool(preflight._check_rates(str(path), facts)) is not is_here

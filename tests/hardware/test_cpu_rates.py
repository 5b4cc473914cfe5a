"""The rates of a CPU: measured until nothing disturbs the measurement, and kept in a file that may be anything."""

import json
import os
import time
from dataclasses import replace

import pytest

from shoestring.hardware import cpu_rates as module
from shoestring.hardware.cpu_rates import CpuRates, cpu_rates

GOOD = CpuRates(fp32_flops=2e11, bandwidth=4e10, spread=0.01, is_disturbed=False)
SLOW = CpuRates(fp32_flops=1e11, bandwidth=5e10, spread=0.3, is_disturbed=True)


@pytest.fixture
def attempts(monkeypatch, tmp_path):
    """The rates that attempts will measure, in order; those that are left over were not needed. The cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in module._THREADS:
        monkeypatch.delenv(name, raising=False)
    planned = []
    monkeypatch.setattr(module, "_attempt", lambda: planned.pop(0))
    return planned


def files(tmp_path):
    return [path for path in sorted((tmp_path / "cache").rglob("*")) if not path.is_dir()]


def test_undisturbed_rates_are_measured_once(attempts, tmp_path):
    attempts += [GOOD, SLOW]
    assert [cpu_rates("A CPU", 2) for _ in range(3)] == [GOOD] * 3
    assert attempts == [SLOW]
    (file,) = files(tmp_path)
    assert file.parent == tmp_path / "cache" / "shoestring" / "cpu_rates"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize("change", ["cpu", "cores", "numpy", "threads"])
def test_what_changes_the_rates_is_measured_again(attempts, monkeypatch, change):
    attempts += [GOOD, replace(GOOD, bandwidth=1e10)]
    assert cpu_rates("A CPU", 2) == GOOD
    if change == "numpy":
        monkeypatch.setattr(module.importlib.metadata, "version", lambda name: "1.0")
    if change == "threads":
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
    other = {"cpu": ("Another CPU", 2), "cores": ("A CPU", 4)}.get(change, ("A CPU", 2))
    assert cpu_rates(*other).bandwidth == 1e10


def test_disturbed_measurement_is_repeated_until_one_is_not(attempts):
    attempts += [SLOW, SLOW, GOOD, SLOW]
    best = replace(GOOD, bandwidth=SLOW.bandwidth)  # disturbances only lower a rate
    assert cpu_rates("A CPU", 2) == cpu_rates("A CPU", 2) == best
    assert attempts == [SLOW]


def test_busy_machine_is_measured_for_a_bounded_time_and_once_more_in_each_process(attempts, monkeypatch):
    seconds = iter([0.0, 0.2, 0.4, 0.6, 10.0, 20.0])
    monkeypatch.setattr(module, "monotonic", lambda: next(seconds))
    attempts += [SLOW] * 3
    assert cpu_rates("A CPU", 2) == SLOW and attempts == []
    slower = replace(SLOW, fp32_flops=5e10)
    attempts += [slower, GOOD, SLOW]
    assert cpu_rates("A CPU", 2).fp32_flops == SLOW.fp32_flops
    assert cpu_rates("A CPU", 2).fp32_flops == GOOD.fp32_flops
    assert not cpu_rates("A CPU", 2).is_disturbed and attempts == [SLOW]


DAMAGES = {
    "text": lambda values: "{",
    "list": lambda values: [values],
    "format": lambda values: {**values, "format": "other"},
    "subject": lambda values: {**values, "subject": {**values["subject"], "cores": 3}},
    "missing rate": lambda values: {**values, "rates": {"bandwidth": 1e9}},
    "unknown rate": lambda values: {**values, "rates": {**values["rates"], "more": 1}},
    "zero": lambda values: {**values, "rates": {**values["rates"], "fp32_flops": 0}},
    "number as truth": lambda values: {**values, "rates": {**values["rates"], "is_disturbed": 0}},
    "too long": lambda values: f"{json.dumps(values)}{' ' * 10_000}",
}


@pytest.mark.parametrize("damage", [*DAMAGES, "writable", "link", "pipe", "folder writable", "owner"])
def test_file_that_cannot_be_relied_on_is_ignored(attempts, tmp_path, monkeypatch, damage):
    attempts += [GOOD, replace(GOOD, bandwidth=1e10)]
    cpu_rates("A CPU", 2)
    (file,) = files(tmp_path)
    if damage == "writable":
        file.chmod(0o666)
    elif damage == "folder writable":
        file.parent.chmod(0o777)
    elif damage == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    elif damage == "pipe":
        file.unlink()
        os.mkfifo(file)
    elif damage == "owner":
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    else:
        content = DAMAGES[damage](json.loads(file.read_text()))
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    assert cpu_rates("A CPU", 2).bandwidth == 1e10
    if damage in (*DAMAGES, "writable", "link", "pipe"):  # it is replaced
        assert cpu_rates("A CPU", 2).bandwidth == 1e10 and file.is_file() and not file.is_symlink()
    assert len(files(tmp_path)) == 1


def fails(error):
    """Return a function that raises the error."""

    def raising(*_):
        raise error

    return raising


@pytest.mark.parametrize("obstacle", ["file in place of the folder", "full disk", "no home"])
def test_cache_that_cannot_be_written_does_not_matter(attempts, tmp_path, monkeypatch, obstacle):
    attempts += [GOOD, GOOD]
    if obstacle == "no home":
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which is to be ignored
        monkeypatch.setattr(module.Path, "home", fails(RuntimeError("no home directory")))
    elif obstacle == "full disk":
        monkeypatch.setattr(module.Path, "replace", fails(OSError("no space left")))
    else:
        (tmp_path / "cache").write_text("")
    assert [cpu_rates("A CPU", 2) for _ in range(2)] == [GOOD, GOOD]
    assert attempts == [] and files(tmp_path) == []


def test_waiting_for_a_processor_is_a_disturbance(monkeypatch):
    monkeypatch.setattr(module, "_SIDE", 64)
    monkeypatch.setattr(module, "_COPY_BYTES", 1000)
    monkeypatch.setattr(module, "_MAX_SPREAD", 1e6)
    monkeypatch.setattr(module, "waited_seconds", lambda: 5.0)
    rates = module._attempt()
    assert rates.fp32_flops > 0 and rates.bandwidth > 0 and not rates.is_disturbed
    monkeypatch.setattr(module, "_MAX_SPREAD", -1.0)
    assert module._attempt().is_disturbed
    monkeypatch.setattr(module, "_MAX_SPREAD", 1e6)
    waited = iter([5.0, 50.0])
    monkeypatch.setattr(module, "waited_seconds", lambda: next(waited))
    assert module._attempt().is_disturbed


def test_kernel_tells_how_long_threads_waited(tmp_path):
    for thread, text in (("7", "100 2000000000 3\n"), ("8", "100 500000000 3\n")):
        folder = tmp_path / "proc/self/task" / thread
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text(text)
    assert module.waited_seconds(tmp_path) == 2.5
    # Without the statistics it is the time in which this thread does not compute.
    before = module.waited_seconds(tmp_path / "none")
    time.sleep(0.05)
    assert module.waited_seconds(tmp_path / "none") - before > 0.04

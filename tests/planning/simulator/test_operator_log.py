"""The file that the simulator writes, by its own C++ code: what is stored, sampled, and left after a kill."""

import shutil
import subprocess
from pathlib import Path

import pytest

from shoestring.planning import simulator
from shoestring.planning.simulator.recorded import (
    BACKWARD,
    EVALUATION,
    FORWARD,
    OPTIMIZER,
    TRAINING,
    RecordedOperators,
    RecordedTensor,
    read_operators,
)

NATIVE = Path(simulator.__file__).parent / "native" / "torch"

DRIVER = r"""
#include "operator_log.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

// Reads commands from its input: "call SIGNATURE STEP", "phase NUMBER", "update NUMBER", "wait", "close", "kill".
int main(int, char** arguments) {
  simulator::OperatorLog log(arguments[1]);
  if (!log.is_open()) return 3;
  char word[16];
  long first = 0, second = 0;
  static int identity;
  while (std::scanf("%15s", word) == 1) {
    const auto is = [&](const char* name) { return std::strcmp(word, name) == 0; };
    if (is("call")) {
      if (std::scanf("%ld %ld", &first, &second) != 2) return 4;
      if (!log.is_sampling()) {
        log.count();
        continue;
      }
      if (log.operator_number(&identity) == log.unknown) {
        log.add_operator(&identity, R"({"name":"aten::neg","arguments":["self"],"written":[],"aliases":[]})");
      }
      uint32_t number = log.signature_number(first);
      if (number == log.unknown) {
        const std::string size = std::to_string(first);
        number = log.add_signature(first, "[0,[[\"Float\",[" + size + "]]],[[\"Float\",[" + size + "]]]]");
      }
      log.add({number, 0, static_cast<uint8_t>(second), 0, false});
    } else if (is("phase") && std::scanf("%ld", &first) == 1) {
      log.set_phase(static_cast<int>(first));
    } else if (is("update") && std::scanf("%ld", &first) == 1) {
      log.end_update(first);
    } else if (is("wait")) {
      log.host_waited();
    } else if (is("close")) {
      log.close_units();
    } else if (is("kill")) {
      std::raise(SIGKILL);
    } else {
      return 5;
    }
  }
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++") or shutil.which("c++")
    if not compiler:
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.cpp").write_text(DRIVER)
    sources = [str(folder / "driver.cpp"), str(NATIVE / "operator_log.cpp")]
    options = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-I", str(NATIVE), "-o", str(folder / "driver")]
    subprocess.run([compiler, *options, *sources], check=True)
    return folder / "driver"


def record(driver: Path, folder: Path, commands: str) -> RecordedOperators:
    path = folder / "operators.1"
    path.unlink(missing_ok=True)
    subprocess.run([driver, path], input=commands, text=True, check="kill" not in commands, timeout=60)
    recorded = read_operators(path)
    assert recorded is not None
    return recorded


def microbatch(size: int) -> str:
    return f"call {size} {FORWARD} call {size} {BACKWARD} "


def test_equal_updates_are_stored_once(driver: Path, tmp_path: Path) -> None:
    step = f"call 7 {OPTIMIZER} "
    updates = "".join(2 * microbatch(5) + step + f"update {number} " for number in range(1, 11))
    recorded = record(driver, tmp_path, f"phase {TRAINING} {updates}")
    (unit,) = recorded.units
    assert (unit.weight, unit.update) == (10, 0)
    assert len(unit.segments) == 3
    assert unit.segments[0] == unit.segments[1]
    steps = [[call.step for call in recorded.calls_of(segment)] for segment in unit.segments]
    assert steps == [[FORWARD, BACKWARD], [FORWARD, BACKWARD], [OPTIMIZER]]
    totals = recorded.totals[TRAINING]
    assert (totals.units, totals.sampled_units, totals.calls, totals.sampled_calls) == (10, 10, 50, 50)


def test_first_update_has_what_was_called_before_it_is_announced(driver: Path, tmp_path: Path) -> None:
    update = f"{microbatch(5)} update"
    commands = f"phase {TRAINING} update 0 call 9 {FORWARD} update 1 {update} 2 {update} 3"
    recorded = record(driver, tmp_path, commands)
    assert [(unit.update, len(list(recorded.calls_of(unit.segments[0])))) for unit in recorded.units] == [
        (1, 3),
        (2, 2),
    ]


def test_updates_without_a_backward_pass_are_divided_too(driver: Path, tmp_path: Path) -> None:
    calls = "".join(f"call 5 {FORWARD} update {number} " for number in range(1, 6))
    recorded = record(driver, tmp_path, f"phase {TRAINING} {calls}")
    assert recorded.totals[TRAINING].units == 4


def test_killed_process_leaves_complete_updates(driver: Path, tmp_path: Path) -> None:
    commands = f"phase {TRAINING} {microbatch(5)} update 1 {microbatch(6)} update 2 {microbatch(7)} kill"
    recorded = record(driver, tmp_path, commands)
    assert [unit.update for unit in recorded.units] == [0, 1]
    assert recorded.totals[TRAINING].units == 2


def test_many_different_updates_are_sampled_with_weights(driver: Path, tmp_path: Path) -> None:
    count = 5000
    updates = "".join(f"{microbatch(number + 1)} update {number + 1} " for number in range(count))
    recorded = record(driver, tmp_path, f"phase {TRAINING} {updates}")
    assert 200 < len(recorded.units) < 300
    assert recorded.totals[TRAINING].units == count
    weights = [unit.weight for unit in recorded.units]
    assert sum(weights) == pytest.approx(count, rel=0.05)
    first = [recorded.signatures[next(recorded.calls_of(unit.segments[0])).signature] for unit in recorded.units]
    values = [value.sizes[0] for signature in first for value in signature.results if isinstance(value, RecordedTensor)]
    mean = sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
    assert mean == pytest.approx(count / 2, rel=0.05)


def test_file_is_bounded_by_long_updates_that_all_differ(driver: Path, tmp_path: Path) -> None:
    long = "".join(f"call {number} {FORWARD} " for number in range(1, 2001))
    updates = "".join(f"{long} call {number + 3000} {BACKWARD} update {number + 1} " for number in range(300))
    recorded = record(driver, tmp_path, f"phase {TRAINING} {updates}")
    assert (tmp_path / "operators.1").stat().st_size < 2 * 2**20
    assert recorded.totals[TRAINING].units == 300
    assert sum(unit.weight for unit in recorded.units) == pytest.approx(300, abs=32)


def test_evaluation_is_divided_where_the_host_waits(driver: Path, tmp_path: Path) -> None:
    batches = "".join(f"call {size} {FORWARD} call {size} {FORWARD} wait " for size in (5, 5, 6))
    recorded = record(driver, tmp_path, f"phase {EVALUATION} {batches} call 9 {FORWARD} phase 5 call 1 {FORWARD} wait")
    assert [(unit.phase, unit.weight) for unit in recorded.units] == [(EVALUATION, 2), (EVALUATION, 1), (EVALUATION, 1)]
    assert recorded.totals[5].calls == 1


def test_update_goes_on_after_an_evaluation(driver: Path, tmp_path: Path) -> None:
    evaluation = f"phase {EVALUATION} call 6 {FORWARD} "
    commands = f"phase {TRAINING} {microbatch(5)} {evaluation} phase {TRAINING} {microbatch(5)} update 1"
    recorded = record(driver, tmp_path, commands)
    (update,) = recorded.units_of(TRAINING)
    assert len(update.segments) == 2
    assert len(recorded.units_of(EVALUATION)) == 1


def test_end_of_the_process_completes_evaluation_but_no_update(driver: Path, tmp_path: Path) -> None:
    commands = f"phase {TRAINING} {microbatch(5)} phase {EVALUATION} call 6 {FORWARD} close"
    recorded = record(driver, tmp_path, commands)
    assert [unit.phase for unit in recorded.units] == [EVALUATION]


def test_folder_that_cannot_be_written_records_nothing(driver: Path, tmp_path: Path) -> None:
    result = subprocess.run([driver, tmp_path / "missing" / "operators.1"], input="", text=True, check=False)
    assert result.returncode == 3

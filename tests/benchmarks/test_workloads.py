import json
import subprocess

import pytest
from benchmarks.memory.workloads import ROWS, Row, main, table

from shoestring import config
from shoestring.hardware.targets import find
from shoestring.recipe.finding import choose


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.recipe}: {row.setting}")
def test_every_command_is_valid(row: Row) -> None:
    choose(row.recipe, config.parse_pairs(row.options.split()))
    find(row.target)


def test_parts_are_grouped_and_sum_to_the_estimate() -> None:
    sizes = {"weights": 1, "gradients": 2, "optimizer states": 4, "activations": 8, "reserve space": 16, "batch": 32}
    parts = [{"name": name, "bytes": size * 10**9} for name, size in sizes.items()]
    answer = {
        "parts": parts,
        "peak_bytes": 63 * 10**9,
        "low_bytes": 60 * 10**9,
        "high_bytes": 65 * 10**9,
        "fits": False,
    }
    row = Row(recipe="mine", setting="batch 2", guide="7 GB", options="micro_batch=2")
    expected = "| mine | batch 2 | 7 GB | 63.00 GB | 60.00-65.00 | 7.00 | 24.00 | 32.00 | no |"
    assert table([(row, answer)]).splitlines()[2:] == [expected]


def test_printed_commands_are_those_that_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command[2:])
        answer = {"parts": [], "peak_bytes": 0, "low_bytes": 0, "high_bytes": 0, "fits": True}
        return subprocess.CompletedProcess(command, 0, stdout=json.dumps(answer))

    monkeypatch.setattr("benchmarks.memory.workloads.subprocess.run", run)
    main(["cloud"])
    output = capsys.readouterr().out
    assert len(commands) == 2
    assert all(" ".join(command[:-1]) in output and command[-1] == "--json" for command in commands)

"""A watched run in a terminal of 80 columns."""

import io
import json
import re

import pytest
from rich.cells import cell_len

from shoestring.answers.renderers.terminal.console import SafeConsole
from shoestring.answers.watch.screen import Screen
from shoestring.answers.watch.watcher import Watcher
from tests.answers import runs


def lines_of(run, width=80, seconds=200):
    view = Watcher(run, clock=lambda: runs.BEGIN + seconds).view()
    console = SafeConsole(file=io.StringIO(), width=width)
    console.print(Screen(view))
    return console.file.getvalue().splitlines()


def test_finished_run_is_shown_in_one_screen(tmp_path):
    lines = lines_of(runs.finished(tmp_path))
    assert len(lines) <= 24
    assert max(map(cell_len, lines)) <= 80
    text = "\n".join(line.rstrip() for line in lines)
    for expected in (
        "temporal  finished · session 4 on Tesla T4",
        "all updates are done",
        "update 3,000 of 3,000 · 100.0% · epoch 10",
        "▅ training 0.3",
        "best 0.4292 at update 2,400",
        "samples/s · 504 ms an update (planned 460 ms)",
        "in 4 sessions, 1 of them killed",
        "peak 5.47 GiB · planned 5.74 GiB (5.47 GiB to 6.35 GiB) of 14.57 GiB",
        "finished at update 3,000: all updates are done",
    ):
        assert expected in text
    assert re.search("^test +loss ", text, re.MULTILINE)  # versions of rich leave one space or two between columns
    assert text.count("●") > 5


@pytest.mark.parametrize("width", [40, 60, 200])
def test_other_widths(tmp_path, width):
    lines = lines_of(runs.finished(tmp_path), width)
    assert max(map(cell_len, lines)) <= min(width, 100)


def test_paused_run_shows_the_command(tmp_path):
    run = runs.failed(tmp_path)
    lines = lines_of(run)
    assert lines[0].startswith("temporal  failed")
    assert lines[1:3] == ["loss is nan", "continue with: shoestring train temporal --run runs/temporal"]


def test_end_has_a_date_only_if_it_is_another_day(tmp_path):
    run = runs.failed(tmp_path)
    for total, expected in ((3000, "until 09:18 UTC"), (10**6, "until 2025-10-15 05:25 UTC")):
        (run / "state.json").write_text(json.dumps({"status": "running", "total_updates": total}))
        assert expected in "\n".join(lines_of(run)), lines_of(run)


def test_rewards_have_a_line_each(tmp_path):
    run = runs.just_started(tmp_path)
    writer = runs.Writer(run / "events.jsonl")
    writer.session = 1
    for update in range(1, 30):
        metrics = {"reward": update / 40, "rewards/length/mean": 0.5, "kl": 0.1}
        writer.emit("progress", update=update, updates=1, samples=4, seconds=1.0, loss=None, metrics=metrics)
    lines = lines_of(run)
    rewards = [line for line in lines if line.startswith("reward")]
    assert [line.split()[1:3] for line in rewards] == [["reward", "0.725"], ["rewards/length/mean", "0.5"]]
    assert rewards[0].rstrip().endswith("█") and "▁" in rewards[0]


def test_names_from_files_are_harmless(tmp_path):
    run = runs.just_started(tmp_path)
    unsafe = "\x1b[2J[bold]x\n"
    (run / "plan.json").write_text(json.dumps({**runs.PLAN, "recipe": unsafe}))
    (run / "state.json").write_text(json.dumps({"status": unsafe, "reason": unsafe, "next": unsafe}))
    writer = runs.Writer(run / "events.jsonl")
    writer.session = 1
    writer.emit("note", message=unsafe)
    writer.emit("evaluation", update=1, part=unsafe, metrics={unsafe: 1.0})
    text = "\n".join(lines_of(run))
    assert "\x1b" not in text and "\\x1b[2J[bold]x" in text

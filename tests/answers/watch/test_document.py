"""A run in a notebook while it trains, after a failure and at its end."""

import dataclasses
import time

import pytest

from shoestring.answers.watch.watcher import Watcher
from shoestring.base import display
from tests.answers import runs
from tests.answers.markup_text import Reader, flat, read


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return Watcher(runs.finished(tmp_path_factory.mktemp("finished") / "run")).view()


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    return Watcher(runs.failed(tmp_path_factory.mktemp("failed") / "run")).view()


def test_finished_run_is_shown_with_loss_metrics_and_events(finished):
    text = flat(finished._repr_html_())
    assert text.startswith("temporal finished session 4 on Tesla T4")
    for part in ("3,000 of 3,000", "100.0%, epoch 10", "● validation", "best epoch", "most frequent class (test)"):
        assert part in text
    assert "planned 5.74 GiB (5.47 GiB to 6.35 GiB) of 14.57 GiB" in text
    assert "finished at update 3,000: all updates are done" in read(finished._repr_html_())
    assert "go on" not in text and "3,000" in display.text(finished)


def test_drawing_has_the_loss_and_a_dot_for_each_evaluation(finished):
    reader = Reader()
    reader.feed(finished._repr_html_())
    evaluations = [item for item in finished.evaluations if item.part == "validation"]
    assert reader.tags.count("polyline") == 1
    assert finished._repr_html_().count('d="M') == 3 + len(evaluations)  # with the lines of the grid


def test_run_that_stopped_says_how_to_go_on(failed):
    texts = read(failed._repr_html_())
    assert any(text.startswith("Failed: loss is nan") for text in texts)
    assert "Run the cell that trains again to go on, or type in a terminal:" in texts
    assert "shoestring train temporal --run runs/temporal" in texts


def test_run_that_just_started_is_shown(tmp_path):
    view = Watcher(runs.just_started(tmp_path / "run")).view()
    html = view._repr_html_()
    assert "0 of 3,000" in flat(html) and "<svg" not in html


def test_texts_of_a_run_are_no_markup(failed):
    odd = "<b onclick=x>\x1b[31m"
    view = dataclasses.replace(
        failed,
        **dict.fromkeys(("recipe", "run", "status", "reason", "next", "device"), odd),
        problems=[odd],
        metrics={odd: {odd: 1.0}},
        rewards={odd: 1.0},
        reward_curves={odd: failed.loss_curve},
        events=[{"time": 0.0, "text": odd}],
    )
    html = view._repr_html_()
    assert "<b onclick" not in html and "\x1b" not in html
    assert len([text for text in read(html) if "<b onclick=x>" in text]) >= 7


def test_a_view_is_drawn_in_milliseconds(finished):
    finished._repr_html_()
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        finished._repr_html_()
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.05

import re

import pytest

from shoestring.answers.renderers.page.charts import PART_COLORS, STATUS_COLORS, breakdown, timeline
from shoestring.answers.report import bars
from shoestring.answers.report.run import read
from shoestring.training.session.ledger import sessions
from tests.answers import runs


def texts_of(drawing):
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawing)


@pytest.fixture
def run(tmp_path):
    return read(runs.finished(tmp_path))


def test_every_memory_part_shows_its_bytes(run):
    texts = texts_of(breakdown(bars.memory_parts(run)))
    assert {"activations  4.59 GiB", "CUDA context  321 MiB", "fragmentation  220 MiB"} <= set(texts)
    assert {"capacity 14.57 GiB", "measured 5.47 GiB", "planned 5.74 GiB (5.47 GiB to 6.35 GiB)"} <= set(texts)


def test_small_plan_on_a_large_gpu_is_readable(run):
    run.plan["plan"]["memory"].update(parts=[{"name": "weights", "bytes": 2**30}], low_bytes=2**30, high_bytes=2**30)
    run.current.clear()
    drawing = breakdown(bars.memory_parts(run))
    assert any("beyond the axis" in text for text in texts_of(drawing))
    bar = re.search(r'<path d="([^"]*)"[^>]*var\(--blue\)', drawing)[1]
    positions = [float(x) for x in re.findall(r"[ML] ([\d.]+) ", bar)]
    assert max(positions) - min(positions) > 0.6 * 720


def test_more_parts_than_colors_are_all_drawn(run):
    parts = [{"name": f"part {index}", "bytes": 2**30} for index in range(len(PART_COLORS) + 3)]
    run.plan["plan"]["memory"]["parts"] = parts
    assert {f"part {index}  1.00 GiB" for index in range(len(parts))} <= set(
        texts_of(breakdown(bars.memory_parts(run)))
    )


def test_timeline_shows_statuses_saves_and_kills(run):
    drawing = timeline(bars.timeline(sessions(run.events, run.status)))
    assert {"1", "2", "3", "4", "paused", "killed", "finished", "save", "killed here", "25 min 00 s"} <= set(
        texts_of(drawing)
    )
    assert all(f"var(--{name})" in drawing for name in ("blue", "green", "muted"))


def test_each_status_has_a_distinct_color():
    assert len(set(STATUS_COLORS.values())) == len(STATUS_COLORS)

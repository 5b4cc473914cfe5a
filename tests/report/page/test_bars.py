import re

import pytest

from shoestring.report.page import bars
from shoestring.report.page.run import read
from shoestring.session.ledger import sessions
from tests.report import runs


def said(drawing):
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawing)


@pytest.fixture
def run(tmp_path):
    return read(runs.finished(tmp_path))


def test_every_part_has_its_bytes(run):
    texts = said(bars.memory_parts(run))
    assert {"activations  4.59 GiB", "CUDA context  321 MiB", "fragmentation  220 MiB"} <= set(texts)
    assert {"capacity 14.57 GiB", "measured 5.47 GiB", "planned 5.74 GiB (5.47 GiB to 6.35 GiB)"} <= set(texts)


def test_a_small_plan_on_a_large_gpu_can_still_be_read(run):
    run.plan["plan"]["memory"].update(parts=[{"name": "weights", "bytes": 2**30}], low_bytes=2**30, high_bytes=2**30)
    run.current.clear()
    drawing = bars.memory_parts(run)
    assert any("far to the right" in text for text in said(drawing))
    bar = re.search(r'<path d="([^"]*)"[^>]*var\(--blue\)', drawing)[1]
    across = [float(x) for x in re.findall(r"[ML] ([\d.]+) ", bar)]
    assert max(across) - min(across) > 0.6 * 720


def test_more_parts_than_colours_are_all_drawn(run):
    parts = [{"name": f"part {index}", "bytes": 2**30} for index in range(len(bars.PART_COLOURS) + 3)]
    run.plan["plan"]["memory"]["parts"] = parts
    assert {f"part {index}  1.00 GiB" for index in range(len(parts))} <= set(said(bars.memory_parts(run)))


def test_the_timeline_names_endings_saves_and_kills(run):
    found = sessions(run.events, run.status)
    drawing = bars.timeline(found)
    assert {"1", "2", "3", "4", "paused", "killed", "finished", "save", "cut off here", "25 min 00 s"} <= set(
        said(drawing)
    )
    assert all(f"var(--{name})" in drawing for name in ("blue", "green", "muted"))


def test_each_ending_has_a_colour_of_its_own():
    assert len(set(bars.ENDINGS.values())) == len(bars.ENDINGS)

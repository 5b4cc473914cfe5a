import json
import re

import pytest

from shoestring.report.page import curves
from shoestring.report.page.run import read
from tests.report import runs


def test_few_values_stay_as_they_are():
    found = curves.points([(1, 5.0, 1), (2, 7.0, 1)])
    assert [(point.update, point.mean, point.low, point.high) for point in found] == [(1, 5, 5, 5), (2, 7, 7, 7)]


def test_many_values_are_weighed_and_none_is_lost():
    values = [(update, float(update), update % 3 + 1) for update in range(1, 1001)]
    found = curves.points(values, most=100)
    assert len(found) == 100
    assert found[0].low == 1 and found[-1].high == found[-1].update == 1000
    weights = [sum(weight for *_, weight in values[first : first + 10]) for first in range(0, 1000, 10)]
    whole = sum(point.mean * weight for point, weight in zip(found, weights, strict=True))
    assert whole == pytest.approx(sum(value * weight for _, value, weight in values))


def test_values_without_weight_still_have_a_mean():
    assert curves.points([(1, 4.0, 0), (2, 6.0, 0)], most=1)[0].mean == 5


@pytest.fixture
def run(tmp_path):
    return read(runs.finished(tmp_path))


def said(drawing):
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawing)


def test_metrics_are_drawn_beside_their_baseline(run):
    assert curves.metric_names(run) == ["accuracy", "macro_f1"]
    assert "most frequent class 0.253" in said(curves.metric(run, "macro_f1"))


def test_measured_stands_beside_planned(run):
    assert "planned peak 5.74 GiB" in said(curves.memory(run))
    assert "planned" in said(curves.throughput(run))


def test_a_capacity_far_above_does_not_flatten_the_curve(run):
    assert not any(text.startswith("capacity") for text in said(curves.memory(run)))
    run.plan["plan"]["memory"]["capacity_bytes"] = 6 * 2**30
    assert "capacity 6.00 GiB" in said(curves.memory(run))


def test_a_loss_that_falls_through_orders_of_magnitude_is_drawn_on_a_log_scale(tmp_path):
    (tmp_path / "events.jsonl").write_text(
        "\n".join(
            json.dumps({"time": 0.0, "session": 1, "event": "progress", "update": update, "loss": 10 / 4**update})
            for update in range(8)
        )
    )
    assert {"0.001", "0.01", "0.1", "1", "10"} <= set(said(curves.loss(read(tmp_path))))


def test_losses_that_are_not_finite_are_no_points(tmp_path):
    line = {"time": 0.0, "session": 1, "event": "progress", "loss": "nan", "update": 1}
    (tmp_path / "events.jsonl").write_text(json.dumps(line))
    assert curves.loss(read(tmp_path)) == ""


def test_work_done_again_is_drawn_once(run):
    updates = [event["update"] for event in run.of("progress")]
    assert updates == sorted(set(updates))
    assert len(run.events) > len(run.current)

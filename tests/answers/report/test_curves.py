import json
import re

import pytest

from shoestring.answers.renderers.page.charts import line_chart
from shoestring.answers.report import curves
from shoestring.answers.report.run import read
from tests.answers import runs


def test_few_values_are_not_downsampled():
    points = curves.downsample([(1, 5.0, 1), (2, 7.0, 1)])
    assert [(point.x, point.y, point.low, point.high) for point in points] == [(1, 5, 5, 5), (2, 7, 7, 7)]


def test_downsampling_weights_values_and_loses_none():
    values = [(update, float(update), update % 3 + 1) for update in range(1, 1001)]
    points = curves.downsample(values, max_points=100)
    assert len(points) == 100
    assert points[0].low == 1 and points[-1].high == points[-1].x == 1000
    weights = [sum(weight for *_, weight in values[first : first + 10]) for first in range(0, 1000, 10)]
    weighted_sum = sum(point.y * weight for point, weight in zip(points, weights, strict=True))
    assert weighted_sum == pytest.approx(sum(value * weight for _, value, weight in values))


def test_values_without_weight_have_a_mean():
    assert curves.downsample([(1, 4.0, 0), (2, 6.0, 0)], max_points=1)[0].y == 5


@pytest.fixture
def run(tmp_path):
    return read(runs.finished(tmp_path))


def texts_of(chart):
    return re.findall(r"<text[^>]*>([^<]*)</text>", line_chart(chart))


def test_metrics_are_drawn_with_their_baseline(run):
    assert curves.metric_names(run) == ["accuracy", "macro_f1"]
    assert "most frequent class 0.253" in texts_of(curves.metric(run, "macro_f1"))


def test_measured_and_planned_values_are_drawn(run):
    assert "planned peak 5.74 GiB" in texts_of(curves.memory(run))
    assert "planned" in texts_of(curves.throughput(run))


def test_distant_capacity_does_not_flatten_the_curve(run):
    assert not any(text.startswith("capacity") for text in texts_of(curves.memory(run)))
    run.plan["plan"]["memory"]["capacity_bytes"] = 6 * 2**30
    assert "capacity 6.00 GiB" in texts_of(curves.memory(run))


def test_loss_over_orders_of_magnitude_uses_log_scale(tmp_path):
    (tmp_path / "events.jsonl").write_text(
        "\n".join(
            json.dumps({"time": 0.0, "session": 1, "event": "progress", "update": update, "loss": 10 / 4**update})
            for update in range(8)
        )
    )
    assert {"0.001", "0.01", "0.1", "1", "10"} <= set(texts_of(curves.loss(read(tmp_path))))


def test_losses_that_are_not_finite_are_skipped(tmp_path):
    line = {"time": 0.0, "session": 1, "event": "progress", "loss": "nan", "update": 1}
    (tmp_path / "events.jsonl").write_text(json.dumps(line))
    assert not any(series.points for series in curves.loss(read(tmp_path)).series)


def test_repeated_work_is_drawn_once(run):
    updates = [event["update"] for event in run.events_of("progress")]
    assert updates == sorted(set(updates))
    assert len(run.events) > len(run.current)


def test_rewards_are_drawn(tmp_path):
    line = {"time": 0.0, "session": 1, "event": "progress", "loss": 0.1, "update": 1}
    line["metrics"] = {"reward": 0.5, "rewards/length/mean": 0.25, "rewards/length/std": 0.1, "kl": 0.2}
    (tmp_path / "events.jsonl").write_text(json.dumps(line))
    run = read(tmp_path)
    assert curves.reward_names(run) == ["reward", "rewards/length/mean"]
    assert "reward" in texts_of(curves.reward(run, "reward"))

"""The recipes describe their samples for people."""

import json
import re

import pytest

from shoestring.recipe.finding import choose
from shoestring.runs.replay.replayed import describe_sample


@pytest.mark.parametrize(
    ("recipe", "options", "pattern"),
    [
        ("temporal", {}, r'\{"time": "\d{4}-\d\d-\d\d 00:00:00", "symbol": ".*", "class": "(up|flat|down)"\}'),
        ("legal", {"subset": 20}, r'\{"beginning": "\w.{10,119}", "role": ".+"\}'),
        ("legal", {"architecture": "hier_bilstm_crf"}, r'\{"beginning": "\w.{10,119}", "sentences": \d+\}'),
        ("vqa", {}, r'\{"image": ".+", "question": ".+\?", "answer": ".+"\}'),
        ("chart", {}, r'\{"query": ".+", "image": "synthetic chart \d+", "label": ".+"\}'),
    ],
)
def test_sample_is_described(recipe, options, pattern):
    pytest.importorskip("trl" if recipe == "chart" else "torch")
    loaded, _ = choose(recipe, {"size": "tiny", **options})
    value = describe_sample(loaded.parts, loaded.data()["train"], 3)
    assert re.fullmatch(pattern, json.dumps(value, ensure_ascii=False)), value

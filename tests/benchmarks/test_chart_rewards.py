"""The guide's rewards beside ours: the texts, and the comparison with a file of a git repository."""

import json
import subprocess
from pathlib import Path

import pytest
from benchmarks.chart import rewards
from benchmarks.chart.texts import make_texts

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "chart_rewards.json"
SOURCE = """
from sentence_transformers import SentenceTransformer
text_reward_model = SentenceTransformer("MiniLM").cuda().eval()
def format_reward(completions, **columns):
    print(completions)
    return [2.0 * completion.startswith("<think>") for completion in completions]
num_token_reward = accuracy_reward = length_think_reward = chart_type_reward = table_style_reward = format_reward
def process_style_reward(completions, reasoning, **columns):
    return [text_reward_model.encode(text).sum().item() for text in reasoning]
"""


def test_committed_results_are_those_of_the_present_texts_and_equal():
    results, texts = json.loads(RESULTS.read_text()), make_texts()
    assert (results["texts"], results["texts_sha256"]) == (len(texts), rewards.digest(texts)) and len(texts) == 200
    assert results["differences"] == []
    for reward in results["rewards"].values():
        assert reward["equal"] == 200 and 15 < reward["above_least"] < 200


def test_differences_are_found_and_named(tmp_path, capsys):
    (tmp_path / rewards.FILE).write_text(SOURCE)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "rewards"]):
        subprocess.run([*git, *command], check=True)
    with pytest.raises(SystemExit):
        rewards.main([str(tmp_path), "--commit", "HEAD", "--json", str(tmp_path / "out.json")])
    result = json.loads((tmp_path / "out.json").read_text())
    assert json.loads(capsys.readouterr().out) == result
    assert 0 < result["rewards"]["form"]["equal"] < 200
    first = next(difference for difference in result["differences"] if difference["reward"] == "form")
    assert (first["guide"], first["ours"]) == (2.0, 0.0) and first["text"].startswith("<think>")

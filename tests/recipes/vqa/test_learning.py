"""The tiny student learns from the images, not only from the texts."""

from collections import Counter, defaultdict

import pytest

from shoestring_recipes.vqa import VQA, Options
from tests.sessions import session

VALUES = {"size": "tiny", "epochs": 6, "effective_batch": 32, "beams": 2}


def text_only_exact_match() -> float:
    """Return the exact match on the test part of each question's most frequent answer in the training part."""
    parts = {name: dataset._samples for name, dataset in VQA(Options(size="tiny")).data().items()}
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    for sample in parts["train"]:
        answers[sample.question][sample.answer] += 1
    matches = [answers[sample.question].most_common(1)[0][0] == sample.answer for sample in parts["test"]]
    return sum(matches) / len(matches)


@pytest.mark.slow
def test_training_beats_majority_and_text_only_baselines(tmp_path):
    metrics = session("vqa", tmp_path, VALUES).metrics["test"]
    assert metrics["exact_match"] > metrics["majority_exact_match"] + 0.2
    assert metrics["exact_match"] > text_only_exact_match() + 0.05
    assert metrics["token_f1"] > metrics["majority_token_f1"] + 0.2
    assert metrics["well_formed"] > 0.95
    assert metrics["reasoning_rouge_l"] > 0.6

"""The tiny student learns from what it sees, and not only to write."""

from collections import Counter, defaultdict

from shoestring.recipes.vqa import VQA, Options
from tests.sessions import session

VALUES = {"size": "tiny", "epochs": 5, "effective_batch": 32, "beams": 2}


def blind() -> float:
    """Exact match on the test part of always giving a question's most frequent answer in the training part."""
    parts = {name: dataset._samples for name, dataset in VQA(Options(size="tiny")).data().items()}
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    for sample in parts["train"]:
        answers[sample.question][sample.answer] += 1
    right = [answers[sample.question].most_common(1)[0][0] == sample.answer for sample in parts["test"]]
    return sum(right) / len(right)


def test_it_beats_the_most_frequent_answer_and_whoever_does_not_look(tmp_path):
    metrics = session("vqa", tmp_path, VALUES).metrics["test"]
    assert metrics["exact_match"] > metrics["majority_exact_match"] + 0.2
    assert metrics["exact_match"] > blind() + 0.05
    assert metrics["token_f1"] > metrics["majority_token_f1"] + 0.2
    assert metrics["well_formed"] > 0.95
    assert metrics["reasoning_rouge_l"] > 0.6

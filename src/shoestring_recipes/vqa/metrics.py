"""Metrics of generated answers and reasonings."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from shoestring.recipe.evidence import examples
from shoestring_recipes.vqa.bleu import bleu
from shoestring_recipes.vqa.cider import cider
from shoestring_recipes.vqa.overlap import rouge_l, token_f1, words
from shoestring_recipes.vqa.samples import Sample
from shoestring_recipes.vqa.texts import parse


def compute_scores(texts: Sequence[str], samples: Sequence[Sample]) -> dict[str, Any]:
    """Return metrics of the texts generated for `samples`; BLEU is at most 100, CIDEr 10, and all others 1.

    The `majority_` metrics are those of always giving the most frequent answer of `samples` themselves.
    """
    parsed = [(parse(text), sample) for text, sample in zip(texts, samples, strict=True)]
    answers = [(words(text.answer), words(sample.answer)) for text, sample in parsed]
    reasonings = [(words(text.reasoning), words(sample.reasoning)) for text, sample in parsed]
    most_frequent = Counter(sample.answer for sample in samples).most_common(1)[0][0]
    majority = [(words(most_frequent), reference) for _, reference in answers]
    return {
        **_score_answers("", answers),
        **_score_answers("majority_", majority),
        "bleu": bleu(answers),
        "cider": cider(answers),
        "reasoning_rouge_l": _mean([rouge_l(*pair) for pair in reasonings]),
        "reasoning_bleu": bleu(reasonings),
        "reasoning_cider": cider(reasonings),
        "well_formed": _mean([float(text.well_formed) for text, _ in parsed]),
        "most_frequent_answer": most_frequent,
        "kinds": _exact_match_by_kind(answers, samples),
    }


def find_examples(texts: Sequence[str], samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Return the `examples` of the evidence: the best and the worst by token F1 of the answer, then by ROUGE-L of the
    reasoning.
    """
    parsed = [parse(text) for text in texts]
    pairs = list(zip(parsed, samples, strict=True))
    scores = {
        "token_f1": [token_f1(words(text.answer), words(sample.answer)) for text, sample in pairs],
        "reasoning_rouge_l": [rouge_l(words(text.reasoning), words(sample.reasoning)) for text, sample in pairs],
    }
    return examples(
        [10 * answer + reasoning for answer, reasoning in zip(*scores.values(), strict=True)],
        scores,
        texts={
            "question": [sample.question for sample in samples],
            "answer": [text.answer for text in parsed],
            "true_answer": [sample.answer for sample in samples],
            "reasoning": [text.reasoning for text in parsed],
            "true_reasoning": [sample.reasoning for sample in samples],
        },
    )


def _score_answers(prefix: str, pairs: Sequence[tuple[list[str], list[str]]]) -> dict[str, float]:
    return {
        f"{prefix}exact_match": _mean([float(prediction == reference) for prediction, reference in pairs]),
        f"{prefix}token_f1": _mean([token_f1(*pair) for pair in pairs]),
        f"{prefix}rouge_l": _mean([rouge_l(*pair) for pair in pairs]),
    }


def _exact_match_by_kind(
    pairs: Sequence[tuple[list[str], list[str]]], samples: Sequence[Sample]
) -> dict[str, dict[str, float]]:
    """Return the number of samples and the exact match by kind of reasoning."""
    matches: dict[str, list[float]] = defaultdict(list)
    for (prediction, reference), sample in zip(pairs, samples, strict=True):
        matches[sample.kind].append(float(prediction == reference))
    return {kind: {"samples": len(matches[kind]), "exact_match": _mean(matches[kind])} for kind in sorted(matches)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

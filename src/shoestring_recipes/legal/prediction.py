"""Roles of the sentences of new judgments."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

from shoestring.recipe.inputs import Input, Rows
from shoestring_recipes.legal.documents import Document
from shoestring_recipes.legal.texts import Judgment


class Located(NamedTuple):
    """A sample, or a batch of samples, with further columns of the rows of each sample."""

    samples: Any
    columns: Any


def sentence_inputs(judgments: Iterable[Judgment], build: Callable[[list[Document]], Any]) -> Iterator[Input]:
    """Yield an input for each sentence; `build` makes a dataset of sentences with their context.

    A sentence that cannot be used is no context of others, as in training with `on_bad_rows=skip`.
    """
    for judgment in judgments:
        texts = [sentence.text for sentence in judgment.sentences if sentence.error is None]
        dataset: Any = build([_document(texts)]) if texts else None
        index = 0
        for number, sentence in enumerate(judgment.sentences, start=1):
            identifier = _identifier(judgment, number)
            if sentence.error is not None:
                yield Input(id=identifier, error=sentence.error)
                continue
            if dataset.is_empty(index):
                yield Input(id=identifier, error=f"{judgment.name}, sentence {number}: has no tokens")
            else:
                columns = {"judgment": judgment.name, "sentence": number}
                yield Input(id=identifier, value=sentence.text, load=partial(_load, dataset, index, columns))
            index += 1


def judgment_inputs(judgments: Iterable[Judgment], build: Callable[[list[Document]], Any]) -> Iterator[Input]:
    """Yield an input for each judgment, or for each part of a long one, with a row for each sentence.

    A judgment with a sentence that cannot be used is one error, because its sentences are labeled together.
    """
    for judgment in judgments:
        if errors := [sentence.error for sentence in judgment.sentences if sentence.error is not None]:
            remainder = f"; and {len(errors) - 1} more" if len(errors) > 1 else ""
            yield Input(id=judgment.id, error=f"{errors[0]}{remainder}")
            continue
        dataset = build([_document([sentence.text for sentence in judgment.sentences])])
        for part in range(len(dataset)):
            numbers = [number + 1 for number in dataset.numbers(part)]
            yield Input(
                id=None if judgment.id is None else Rows(_identifier(judgment, number) for number in numbers),
                value=Rows(judgment.sentences[number - 1].text for number in numbers),
                load=partial(_load, dataset, part, {"judgment": judgment.name, "sentence": Rows(numbers)}),
            )


def collate(samples: Sequence[Located], collate_plain: Callable[[list[Any]], Any]) -> Located:
    """Return the samples as a batch with their columns."""
    return Located(collate_plain([sample.samples for sample in samples]), [sample.columns for sample in samples])


def predict_sentences(model: Any, batch: Any, roles: Sequence[str]) -> list[dict[str, Any]]:
    """Return the most probable role of each sentence and its probability."""
    (tokens, mask, _), columns = _unpack(batch)
    probabilities, classes = model(tokens, mask).float().softmax(dim=-1).max(dim=-1)
    return [
        {"prediction": roles[number], "probability": probability, **located}
        for number, probability, located in zip(classes.tolist(), probabilities.tolist(), columns, strict=False)
    ]


def predict_judgments(model: Any, batch: Any, roles: Sequence[str]) -> list[dict[str, Any]]:
    """Return the most probable sequence of roles of each judgment, and each role's probability in its place."""
    batch, columns = _unpack(batch)
    emissions, mask = model(batch), batch["mask"]
    classes = model.crf.decode(emissions, mask)
    probabilities = model.crf.marginals(emissions, mask).gather(2, classes[..., None])[..., 0]
    return [
        {
            "prediction": Rows(roles[number] for number in numbers[:length]),
            "probability": Rows(values[:length]),
            **located,
        }
        for numbers, values, length, located in zip(
            classes.tolist(), probabilities.tolist(), mask.sum(1).tolist(), columns, strict=False
        )
    ]


def role_targets(batch: Any, roles: Sequence[str]) -> list[Any]:
    """Return the true role of each sentence, or of each judgment's sentences."""
    batch, _ = _unpack(batch)
    if isinstance(batch, dict):
        lengths = batch["mask"].sum(1).tolist()
        return [
            Rows(roles[number] for number in numbers[:length])
            for numbers, length in zip(batch["roles"].tolist(), lengths, strict=True)
        ]
    return [roles[number] for number in batch[2].tolist()]


def _unpack(batch: Any) -> tuple[Any, Iterable[dict[str, Any]]]:
    return batch if isinstance(batch, Located) else (batch, repeat({}))


def _document(texts: Sequence[str]) -> Document:
    return Document(sentences=tuple(texts), roles=(0,) * len(texts))


def _identifier(judgment: Judgment, number: int) -> str | None:
    """Return the identifier of a sentence of a judgment with one of its own."""
    return None if judgment.id is None else f"{judgment.id}:{number}"


def _load(dataset: Any, index: int, columns: dict[str, Any]) -> Located:
    return Located(dataset[index], columns)

"""Predictions for judgments without roles are those of an evaluation of the same judgments with roles."""

from pathlib import Path
from typing import Any

import pytest
import torch

from shoestring.recipe.inputs import Input, Rows
from shoestring_recipes.legal import Legal, Options
from shoestring_recipes.legal.roles import SETS

ROLES = SETS["legalseg"]
JUDGMENTS = [
    [(f"The {word} of the court number {number}", ROLES[(number * 3 + place) % 7]) for place, word in enumerate(words)]
    for number, words in enumerate([["house", "lorry", "!"], ["land", "appeal", "shop", "widow", "judge"], ["costs"]])
]


def write(folder: Path, *, roles: bool) -> Path:
    folder.mkdir()
    for number, judgment in enumerate(JUDGMENTS[:2]):
        lines = [f"{text}\t{role}" if roles else text for text, role in judgment]
        lines += ["", *(f"{text}\t{role}" if roles else text for text, role in JUDGMENTS[2])] if number else []
        (folder / f"{number}.txt").write_text("\n".join(lines))
    return folder


def make(**options: Any) -> tuple[Legal, Any]:
    torch.manual_seed(3)
    recipe = Legal(Options(size="tiny", **options))
    model = recipe.model().eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(3)  # with initial weights all sentences have the same role
    return recipe, model


def rows(recipe: Legal, model: Any, inputs: list[Input]) -> list[dict[str, Any]]:
    with torch.no_grad():
        predictions = recipe.predict(model, recipe.collate([item.load() for item in inputs]))
    return [
        {name: value[row] if isinstance(value, Rows) else value for name, value in columns.items()}
        for columns in predictions
        for row in range(len(columns["prediction"]) if isinstance(columns["prediction"], Rows) else 1)
    ]


@pytest.mark.parametrize("context", ["single", "two_previous", "surrounding"])
def test_sentences_have_the_predictions_of_an_evaluation(tmp_path: Path, context: str) -> None:
    labeled, plain = write(tmp_path / "labeled", roles=True), write(tmp_path / "plain", roles=False)
    recipe, model = make(data=labeled, context=context)
    dataset = recipe.whole()
    assert [recipe.identify(dataset, index) for index in range(9)] == [
        *(f"0.txt:{line}" for line in (1, 2, 3)),
        *(f"1.txt:{line}" for line in (1, 2, 3, 4, 5, 7)),
    ]
    batch = recipe.collate([dataset[index] for index in range(9)])
    assert recipe.targets(batch) == [role for judgment in JUDGMENTS for _, role in judgment]
    with torch.no_grad():
        probabilities = model(*batch[:2]).softmax(-1)
        expected = recipe.predict(model, batch)
    inputs = list(recipe.inputs(plain))
    assert [item.value for item in inputs] == [text for judgment in JUDGMENTS for text, _ in judgment]
    assert [item.id for item in inputs] == [None] * 9
    predictions = rows(recipe, model, inputs)
    assert [row["judgment"] for row in predictions] == ["0.txt"] * 3 + ["1.txt"] * 5 + ["1.txt#2"]
    assert [row["sentence"] for row in predictions] == [1, 2, 3, 1, 2, 3, 4, 5, 1]
    for row, evaluated, probability in zip(predictions, expected, probabilities, strict=True):
        assert row["prediction"] == evaluated["prediction"] == ROLES[probability.argmax()]
        assert row["probability"] == evaluated["probability"] == pytest.approx(float(probability.max()), rel=1e-6)
    assert len({row["probability"] for row in predictions}) > 5


@pytest.mark.parametrize("vectors", [None, 2])
def test_judgments_have_the_predictions_of_an_evaluation(tmp_path: Path, vectors: int | None) -> None:
    labeled, plain = tmp_path / "labeled.txt", tmp_path / "plain.txt"
    texts = [[text if vectors is None else f"{place} -{place * 2}.5" for place, (text, _) in enumerate(judgment)]
             for judgment in JUDGMENTS]  # fmt: skip
    plain.write_text("\n\n".join("\n".join(judgment) for judgment in texts))
    labeled.write_text("\n\n".join("\n".join(f"{text}\tFacts" for text in judgment) for judgment in texts))
    recipe, model = make(data=labeled, architecture="hier_bilstm_crf", max_sentences=4, vectors=vectors)
    dataset = recipe.whole()
    assert [recipe.identify(dataset, index) for index in range(4)] == [
        Rows(f"labeled.txt:{line}" for line in lines) for lines in ((1, 2, 3), (5, 6, 7), (8, 9), (11,))
    ]
    batch = recipe.collate([dataset[index] for index in range(4)])
    assert recipe.targets(batch) == [Rows(["Facts"] * count) for count in (3, 3, 2, 1)]
    with torch.no_grad():
        classes = model.crf.decode(model(batch), batch["mask"])[batch["mask"]].tolist()
        expected = recipe.predict(model, batch)
    inputs = list(recipe.inputs(plain))
    assert [item.value for item in inputs] == [
        Rows(texts[0]), Rows(texts[1][:3]), Rows(texts[1][3:]), Rows(texts[2])
    ]  # fmt: skip
    predictions = rows(recipe, model, inputs)
    assert [row["prediction"] for row in predictions] == [ROLES[number] for number in classes]
    assert [row["probability"] for row in predictions] == [value for row in expected for value in row["probability"]]
    assert [(row["judgment"], row["sentence"]) for row in predictions] == [
        *(("plain.txt", number) for number in (1, 2, 3)),
        *(("plain.txt#2", number) for number in (1, 2, 3, 4, 5)),
        ("plain.txt#3", 1),
    ]


def test_unusable_sentences_are_errors_and_no_context(tmp_path: Path) -> None:
    plain, damaged = tmp_path / "plain.txt", tmp_path / "damaged.txt"
    plain.write_text("The house\nThe lorry\nThe shop")
    damaged.write_bytes(b"The house\n\xff\nThe lorry\nThe\0 land\nThe shop")
    recipe, model = make(context="surrounding")
    inputs = list(recipe.inputs(damaged))
    assert [item.error and item.error.split(":")[0] for item in inputs] == [
        None, "damaged.txt, line 2", None, "damaged.txt, line 4", None
    ]  # fmt: skip
    usable = [item for item in inputs if item.error is None]
    expected = rows(recipe, model, list(recipe.inputs(plain)))
    assert [row["probability"] for row in rows(recipe, model, usable)] == [row["probability"] for row in expected]
    together, _ = make(architecture="hier_bilstm_crf")
    (error,) = together.inputs(damaged)
    assert error.error == "damaged.txt, line 2: is not UTF-8: invalid start byte at byte 0; and 1 more"


def test_identifiers_of_a_list_are_those_of_its_sentences() -> None:
    items = [{"id": "a", "sentences": ["One", "Two"]}, {"id": 3, "sentences": ["Three", 4]}]
    assert [item.id for item in make()[0].inputs(items)] == ["a:1", "a:2", "3:1", "3:2"]
    inputs = list(make(architecture="hier_bilstm_crf")[0].inputs(items))
    assert [item.id for item in inputs] == [Rows(["a:1", "a:2"]), 3]


def test_without_data_the_synthetic_judgments_are_predicted() -> None:
    recipe, model = make()
    inputs = recipe.inputs(None)
    first = [next(inputs) for _ in range(3)]
    assert {row["judgment"] for row in rows(recipe, model, first)} == {"0"}

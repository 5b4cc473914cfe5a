"""Evidence: confusion matrices, histograms, and the choice of samples."""

import json
import math

import torch

from shoestring.recipe.evidence import confusion_matrix, examples, histogram, worst_samples


def test_rows_of_the_confusion_matrix_are_the_true_classes():
    truth, predicted = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 1, 1, 1, 2])
    matrix = confusion_matrix(truth, predicted, ["a", "b", "c"])
    assert matrix == {"labels": ["a", "b", "c"], "counts": [[1, 1, 0], [0, 2, 1], [0, 0, 0]]}
    assert json.loads(json.dumps(matrix)) == matrix


def test_histogram_counts_each_finite_value_once():
    values = [0.0, 0.1, 5.0, 9.99, 10.0, math.nan, math.inf]
    counted = histogram(values)
    assert counted["edges"][0] == 0 and counted["edges"][-1] == 10 and len(counted["edges"]) == 21
    assert sum(counted["counts"]) == 5
    assert counted["counts"][0] == 2 and counted["counts"][10] == 1 and counted["counts"][-1] == 2
    assert histogram([3.0, 3.0]) == {"edges": [3.0, 3.0], "counts": [2]}
    assert histogram([]) == {"edges": [0.0, 0.0], "counts": [0]}


def test_worst_samples_come_first_and_nan_is_the_worst():
    quality = [3.0, math.nan, 1.0]
    rows = worst_samples(quality, {"psnr": quality, "mae": [0.1, 0.2, 0.3]})
    assert [row["index"] for row in rows] == [1, 2, 0]
    assert rows[1]["scores"] == {"psnr": 1.0, "mae": 0.3}
    assert len(worst_samples(list(range(1000)), {})) == 100


def test_examples_are_the_best_the_worst_and_random_ones():
    quality = [float(index % 50) + index / 1000 for index in range(100)]
    rows = examples(quality, {"quality": quality}, texts={"answer": [str(index) for index in range(100)]}, count=2)
    assert [(row["group"], row["index"]) for row in rows[:4]] == [
        ("best", 99),
        ("best", 49),
        ("worst", 0),
        ("worst", 50),
    ]
    assert all(row["texts"] == {"answer": str(row["index"])} for row in rows)
    random_indices = [row["index"] for row in rows[4:]]
    assert len(random_indices) == 2 and not {0, 49, 50, 99} & set(random_indices)
    # Another evaluation shows the same random samples.
    again = examples([-value for value in quality], {}, count=2)
    assert [row["index"] for row in again[4:]] == random_indices


def test_few_samples_are_shown_once():
    for count in range(8):
        rows = examples([float(index) for index in range(count)], {}, count=3)
        assert sorted(row["index"] for row in rows) == list(range(min(count, 9)))
    assert [(row["group"], row["index"]) for row in examples([1.0, 2.0], {})] == [("best", 1), ("worst", 0)]


def test_long_texts_are_shortened():
    (row,) = examples([1.0], {}, texts={"answer": ["x" * 5000]})
    assert len(row["texts"]["answer"]) < 1100

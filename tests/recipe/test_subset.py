from collections import Counter

import pytest
import torch
from torch.utils.data import TensorDataset

from shoestring.base.errors import UsageError
from shoestring.recipe.finding import choose
from shoestring.recipe.subset import Subset, choose_subset

LABELS = ["rare" if index % 20 == 0 else "often" if index % 2 else "now and then" for index in range(1000)]


@pytest.mark.parametrize("label", [None, LABELS.__getitem__])
def test_subset_depends_on_the_seed_and_is_nested(label):
    tenth, fifth, count = (choose_subset(1000, size, seed=4, label=label) for size in (0.1, 0.2, 300))
    assert (len(tenth), len(fifth), len(count)) == (100, 200, 300)
    assert set(tenth) < set(fifth) < set(count)
    assert tenth == sorted(tenth) == choose_subset(1000, 0.1, seed=4, label=label)
    assert tenth != choose_subset(1000, 0.1, seed=5, label=label)
    assert choose_subset(1000, 1.0, seed=4, label=label) == list(range(1000))


@pytest.mark.parametrize("size", [0.05, 0.1, 0.33, 77, 999])
def test_subset_preserves_the_share_of_each_label(size):
    indices = choose_subset(1000, size, seed=0, label=LABELS.__getitem__)
    subset_counts, total_counts = Counter(LABELS[index] for index in indices), Counter(LABELS)
    for label, count in total_counts.items():
        assert abs(subset_counts[label] - count * len(indices) / 1000) <= 1


def test_subset_without_labels_has_random_shares():
    """Shows that the comparison above can fail."""
    subset_counts = Counter(LABELS[index] for index in choose_subset(1000, 200, seed=0))
    assert any(abs(subset_counts[label] - count / 5) > 1 for label, count in Counter(LABELS).items())


@pytest.mark.parametrize("size", [0.0, -1, 1001, 2.5, 0.0001])
def test_impossible_sizes_are_refused(size):
    with pytest.raises(UsageError, match="of 1000 samples"):
        choose_subset(1000, size, seed=0)


class BatchDataset(TensorDataset):
    nbytes = 10

    def __getitems__(self, indices):
        return [self[index] for index in indices]

    def to(self, device):
        return BatchDataset(*(tensor.to(device) for tensor in self.tensors))


def test_subset_has_the_optional_methods_of_its_dataset():
    plain, batched = (Subset(kind(torch.arange(10)), [2, 5, 7]) for kind in (TensorDataset, BatchDataset))
    assert len(plain) == 3 and int(plain[1][0]) == 5
    assert not any(hasattr(plain, name) for name in ("__getitems__", "nbytes", "to"))
    assert [int(value) for (value,) in batched.__getitems__([2, 0])] == [7, 2]
    assert batched.nbytes == 10 and int(batched.to("cpu")[1][0]) == 5


class Labeled:
    def model(self):
        return torch.nn.Linear(1, 1)

    def batch(self, size):
        return torch.zeros(size, 1)

    def loss(self, model, batch):
        return model(batch).mean()

    def data(self):
        return {"train": list(range(1000)), "validation": list(range(7))}

    def label(self, dataset, index):
        assert len(dataset) == 1000
        return LABELS[dataset[index]]


def test_subset_option_reduces_only_the_training_data():
    loaded, _ = choose(Labeled(), {"subset": "0.05", "seed": 3})
    parts = loaded.data()
    assert (len(parts["train"]), len(parts["validation"])) == (50, 7)
    assert list(parts["train"].indices) == choose_subset(1000, 0.05, seed=3, label=LABELS.__getitem__)
    assert len(choose(Labeled(), {})[0].data()["train"]) == 1000


def test_built_in_recipe_has_the_subset_option():
    loaded, _ = choose("temporal", {"size": "tiny", "subset": 100})
    assert len(loaded.data()["train"]) == 100

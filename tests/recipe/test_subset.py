from collections import Counter

import pytest
import torch
from torch.utils.data import TensorDataset

from shoestring.errors import UsageError
from shoestring.recipe.finding import choose
from shoestring.recipe.subset import Subset, chosen

LABELS = ["rare" if index % 20 == 0 else "often" if index % 2 else "now and then" for index in range(1000)]


@pytest.mark.parametrize("label", [None, LABELS.__getitem__])
def test_a_subset_is_one_of_the_seed_and_part_of_every_larger_one(label):
    tenth, fifth, count = (chosen(1000, wanted, seed=4, label=label) for wanted in (0.1, 0.2, 300))
    assert (len(tenth), len(fifth), len(count)) == (100, 200, 300)
    assert set(tenth) < set(fifth) < set(count)
    assert tenth == sorted(tenth) == chosen(1000, 0.1, seed=4, label=label)
    assert tenth != chosen(1000, 0.1, seed=5, label=label)
    assert chosen(1000, 1.0, seed=4, label=label) == list(range(1000))


@pytest.mark.parametrize("wanted", [0.05, 0.1, 0.33, 77, 999])
def test_each_label_keeps_its_share(wanted):
    found = chosen(1000, wanted, seed=0, label=LABELS.__getitem__)
    kept, all_of_it = Counter(LABELS[index] for index in found), Counter(LABELS)
    for label, number in all_of_it.items():
        assert abs(kept[label] - number * len(found) / 1000) <= 1


def test_without_labels_the_shares_are_chance():
    """The comparison can fail."""
    kept = Counter(LABELS[index] for index in chosen(1000, 200, seed=0))
    assert any(abs(kept[label] - number / 5) > 1 for label, number in Counter(LABELS).items())


@pytest.mark.parametrize("wanted", [0.0, -1, 1001, 2.5, 0.0001])
def test_what_cannot_be_chosen_is_refused(wanted):
    with pytest.raises(UsageError, match="of 1000 samples"):
        chosen(1000, wanted, seed=0)


class Many(TensorDataset):
    nbytes = 10

    def __getitems__(self, indices):
        return [self[index] for index in indices]

    def to(self, device):
        return Many(*(tensor.to(device) for tensor in self.tensors))


def test_it_can_what_its_dataset_can():
    plain, able = (Subset(kind(torch.arange(10)), [2, 5, 7]) for kind in (TensorDataset, Many))
    assert len(plain) == 3 and int(plain[1][0]) == 5
    assert not any(hasattr(plain, name) for name in ("__getitems__", "nbytes", "to"))
    assert [int(one) for (one,) in able.__getitems__([2, 0])] == [7, 2]
    assert able.nbytes == 10 and int(able.to("cpu")[1][0]) == 5


class Labelled:
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


def test_it_is_an_option_of_every_recipe_and_takes_of_the_training_data_alone():
    loaded, _ = choose(Labelled(), {"subset": "0.05", "seed": 3})
    parts = loaded.data()
    assert (len(parts["train"]), len(parts["validation"])) == (50, 7)
    assert list(parts["train"].indices) == chosen(1000, 0.05, seed=3, label=LABELS.__getitem__)
    assert len(choose(Labelled(), {})[0].data()["train"]) == 1000


def test_a_subset_is_another_training():
    loaded, _ = choose("temporal", {"size": "tiny", "subset": 100})
    assert len(loaded.data()["train"]) == 100

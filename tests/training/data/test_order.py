import pytest

from shoestring.training.data.order import DataOrder


@pytest.mark.parametrize(
    ("samples", "effective_batch", "sizes"),
    [
        (128, 64, [64, 64]),
        (130, 64, [64, 64, 2]),
        (129, 64, [64, 65]),  # a single remaining sample joins the previous update
        (1, 64, [1]),
        (3, 1, [1, 1, 1]),
        (10, 64, [10]),
    ],
)
def test_epoch_has_every_sample_once(samples, effective_batch, sizes):
    order = DataOrder(samples=samples, effective_batch=effective_batch, seed=0)
    assert order.updates_per_epoch == len(sizes)
    updates = [order.indices(number) for number in range(len(sizes))]
    assert [len(update) for update in updates] == sizes
    assert sorted(index for update in updates for index in update) == list(range(samples))


def test_order_depends_only_on_seed_and_epoch():
    first, second = (DataOrder(samples=100, effective_batch=10, seed=7) for _ in range(2))
    updates = [first.indices(number) for number in (25, 3, 14)]
    assert [second.indices(number) for number in (25, 3, 14)] == updates
    assert DataOrder(samples=100, effective_batch=10, seed=8).indices(3) != updates[1]
    assert first.indices(0) != first.indices(10)  # the next epoch is shuffled differently


def test_effective_batch_splits_the_same_order():
    small = DataOrder(samples=60, effective_batch=10, seed=1)
    large = DataOrder(samples=60, effective_batch=30, seed=1)
    assert large.indices(1) == [index for number in (3, 4, 5) for index in small.indices(number)]
    assert large.place(3) == (1, 1)

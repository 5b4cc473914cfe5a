import pytest

from shoestring.training.checkpoint.names import update_name, update_of


@pytest.mark.parametrize("update", [0, 12, 10**8, 10**18 - 1])
def test_update_name_round_trips(update):
    assert update_of(update_name(update)) == update


@pytest.mark.parametrize(
    "name", ["update-12", "update-000000000012", "update-٠٠٠٠٠٠١٢", "update-00000012\n", ".update-00000012", "best"]
)
def test_other_names_have_no_update(name):
    assert update_of(name) is None

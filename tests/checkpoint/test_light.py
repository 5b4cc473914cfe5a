import pytest
import torch
from torch import nn

from shoestring.checkpoint.light import WEIGHTS, load_light, save_light
from shoestring.errors import CheckpointError


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def test_weights_come_back_tied_ones_too(tmp_path):
    saved, loaded = Tied(), Tied()
    save_light(tmp_path / "best", saved, {"update": 7, "metrics": {"loss": 0.5}})
    assert load_light(tmp_path / "best", loaded) == {"update": 7, "metrics": {"loss": 0.5}}
    assert torch.equal(loaded.head.weight, saved.embed.weight)
    assert (tmp_path / "best" / WEIGHTS).stat().st_size < 5 * 3 * 4 + 400


def test_the_file_is_replaced_at_once(tmp_path):
    for _ in range(2):
        save_light(tmp_path, nn.Linear(2, 2), {})
    assert [path.name for path in tmp_path.iterdir()] == [WEIGHTS]


@pytest.mark.parametrize("damage", [lambda data: data[:40], lambda data: b"", lambda data: b"\xff" * 8 + data[8:]])
def test_damaged_weights_are_one_error(tmp_path, damage):
    path = save_light(tmp_path, nn.Linear(2, 2), {})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_light(tmp_path, nn.Linear(2, 2))


def test_another_models_weights_are_one_error(tmp_path):
    save_light(tmp_path, nn.Linear(2, 2), {})
    with pytest.raises(CheckpointError):
        load_light(tmp_path, nn.Linear(3, 2))
    with pytest.raises(CheckpointError):
        load_light(tmp_path / "nothing", nn.Linear(3, 2))

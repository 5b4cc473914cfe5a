"""Tensors are mapped from a file of any name."""

import torch
from safetensors.torch import save

from shoestring.training.checkpoint.mapped import MappedFile


def test_path_may_have_any_bytes(tmp_path):
    file = tmp_path / "run\udcff" / "model.safetensors"
    file.parent.mkdir()
    file.write_bytes(save({"weight": torch.arange(3.0)}))
    mapped = MappedFile(file)
    assert mapped["weight"].tolist() == [0, 1, 2] and list(mapped) == ["weight"]

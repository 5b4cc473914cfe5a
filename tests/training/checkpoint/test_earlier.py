"""Earlier checkpoints are read without changing their directory; the digest of weights is that of the file."""

import torch

from shoestring.training.checkpoint.earlier import read_earlier, saved_weights_digest, weights_digest
from shoestring.training.checkpoint.store import Store


def test_nearest_valid_checkpoint_is_read_and_nothing_is_written(tmp_path):
    root, weights = tmp_path / "checkpoints", {"weight": torch.arange(3.0), "tied": torch.ones(2)}
    assert read_earlier(root, 5) == (None, [])
    assert not root.exists()
    store = Store(root, keep=9)
    for update in (0, 3, 6):
        store.save(update, {"model": weights, "progress": {"update": update}})
    (root / ".writing-00000007-1").mkdir()  # of a killed process, or of one that is writing
    names = sorted(path.name for path in root.iterdir())
    restored, damage = read_earlier(root, 5)
    assert (restored.update, restored.state["progress"], damage) == (3, {"update": 3}, [])
    assert saved_weights_digest(restored.path) == weights_digest(weights)
    assert saved_weights_digest(root / "update-00000004") is None
    (root / "update-00000003" / "model.safetensors").write_bytes(b"")
    restored, damage = read_earlier(root, 5)
    assert restored.update == 0
    assert damage[0].startswith("update-00000003/model.safetensors")
    assert sorted(path.name for path in root.iterdir()) == names

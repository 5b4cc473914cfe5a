"""A checkpoint of several ranks is committed with the files of all of them, or not at all."""

import errno
import os

import pytest
import torch

from shoestring.base.errors import CheckpointError
from shoestring.training import shared_store
from shoestring.training.checkpoint.snapshot import Section, Snapshot
from shoestring.training.engine.parallel.ranks import Ranks
from shoestring.training.shared_store import SharedStore
from tests.ranks import run_ranks


def state(rank):
    """The state of one of two ranks, with three rows of which the first rank has two."""
    whole = torch.arange(6.0).view(3, 2)
    rows = [whole[:2], whole[2:]][rank]
    skeleton = {"rows": {"$tensor": "rows"}, "step": {"$tensor": "step"}}
    section = Section(
        skeleton=skeleton, tensors={"rows": rows, "step": torch.tensor(7)}, divided={"rows": (3, 2)}, ranks=2
    )
    return Snapshot(sections={"model": section})


@pytest.mark.parametrize("failing_rank", [0, 1])
def test_all_files_or_none(tmp_path, failing_rank):
    write_tensors = shared_store.write_tensors
    root = tmp_path / "checkpoints"

    def act(rank):
        store = SharedStore(root, Ranks.join().with_own_group())
        store.write(1, state(rank))

        def fail(folder, snapshot, own_rank):
            files = write_tensors(folder, snapshot, own_rank)
            if rank == failing_rank:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return files

        shared_store.write_tensors = fail
        with pytest.raises(CheckpointError, match="update 2 could not be written"):
            store.write(2, state(rank))
        shared_store.write_tensors = write_tensors
        store.write(3, state(rank))
        model = store.load().state["model"]
        assert model["rows"].whole().tolist() == [[0, 1], [2, 3], [4, 5]]
        assert model["step"] == 7

    assert run_ranks(2, act, tmp_path) == [0, 0]
    assert sorted(path.name for path in root.iterdir()) == ["update-00000001", "update-00000003"]

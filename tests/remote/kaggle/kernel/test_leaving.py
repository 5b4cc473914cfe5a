import torch

from shoestring.remote.kaggle.kernel.leaving import check, prune
from shoestring.training.checkpoint.store import Store

BYTES = 10**9


def write_run(path, updates=(10, 20, 30), retained=()):
    store = Store(path / "checkpoints", keep=9)
    for update in updates:
        store.save(update, {"model": {"weight": torch.full((100,), float(update))}}, retained=update in retained)
    for name in ("plan.json", "state.json"):
        (path / name).write_text('{"total_updates": 40}')
    return store


def checkpoints(path):
    return sorted(entry.name for entry in (path / "checkpoints").iterdir())


def test_newest_two_are_left_if_they_are_small(tmp_path):
    write_run(tmp_path, retained=(10,))
    (tmp_path / "lock").touch()
    (tmp_path / "checkpoints" / ".writing-00000040-7").mkdir()
    answer = prune(tmp_path, BYTES)
    assert checkpoints(tmp_path) == ["update-00000020", "update-00000030"]
    assert answer["update"] == 30 and answer["total_updates"] == 40 and not answer["damaged"]
    assert answer["notes"] == ["checkpoints/update-00000010, which is to be retained, was left out to save space"]
    assert not (tmp_path / "lock").exists()


def test_only_the_newest_is_left_if_two_take_more_than_a_tenth(tmp_path):
    write_run(tmp_path)
    prune(tmp_path, 10_000)
    assert checkpoints(tmp_path) == ["update-00000030"]


def test_damaged_newest_is_named_and_removed_before_the_older_ones(tmp_path):
    store = write_run(tmp_path)
    (store.path(30) / "model.safetensors").write_bytes(b"")
    for answer in (check(tmp_path, []), prune(tmp_path, 10_000)):
        assert answer["checkpoint"] == "update-00000020"
    assert checkpoints(tmp_path) == ["update-00000020"]


def test_file_that_differs_on_the_way_is_not_used(tmp_path):
    write_run(tmp_path)
    name = "checkpoints/update-00000030/model.safetensors: it differs from the file that was left"
    assert check(tmp_path, [name])["update"] == 20
    answer = check(tmp_path, ["plan.json: it differs from the file that was left"])
    assert answer["update"] is None and "plan.json is damaged" in answer["reason"]

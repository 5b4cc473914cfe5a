"""The file of a chain: one from someone else cannot name kernels that are not of the chain."""

import json

import pytest

from shoestring.base.errors import UsageError
from shoestring.remote.kaggle.chain_file import SessionRecord, read_chain
from tests.remote.kaggle.memory_kaggle import make_state

NONCE = "0" * 32


def make_chain(folder, **changes):
    state = make_state()
    state.sessions = [SessionRecord(number=1, nonce=NONCE, slug="run-abcdef-a", limit_seconds=100.0, status="running")]
    chain = state.json()
    session = chain["sessions"][0]
    for name, value in changes.items():
        (session if name in session and name != "status" else chain)[name] = value
    (folder / "chain.json").write_text(json.dumps(chain))


def test_a_chain_that_was_written_is_read(tmp_path):
    make_chain(tmp_path)
    assert read_chain(tmp_path).sessions[0].nonce == NONCE


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slug", "my-notebook"),
        ("slug", "../../run-abcdef-a"),
        ("base", "../run-abcdef"),
        ("base", "my-notebook"),
        ("user", "me/you"),
        ("user", ""),
        ("nonce", ""),
        ("previous", {"kernel": "you/other-abcdef-a", "nonce": NONCE}),
        ("previous", {"kernel": "me/run-abcdef-b", "nonce": 3}),
        ("sessions", [3]),
        ("sessions", {}),
        ("status", ["running"]),
        ("limit_seconds", "long"),
        ("limit_seconds", 1e300),
        ("set", {"epochs": 5}),
        ("data", [[]]),
        ("unknown", 1),
    ],
)
def test_a_hostile_chain_is_one_error(tmp_path, name, value):
    make_chain(tmp_path, **{name: value})
    with pytest.raises(UsageError, match="cannot be used"):
        read_chain(tmp_path)

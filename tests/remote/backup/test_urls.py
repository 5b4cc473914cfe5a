"""URLs have no secrets, and messages neither."""

import pytest

from shoestring.base.errors import UsageError
from shoestring.remote.backup.urls import parse_url, redacted


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("/data/copies", "/data/copies"),
        ("file:///data/my%20copies", "/data/my copies"),
        ("s3://bucket/prefix/", "s3://bucket/prefix"),
        ("hf://datasets/user/repo/run", "hf://datasets/user/repo/run"),
    ],
)
def test_urls(text, url):
    assert parse_url(text).url == url


@pytest.mark.parametrize(
    "text",
    ["s3://me:pass1word@host/b", "s3://bucket/x?token=pass1word", "https://pass1word@host/x", "file://a@b/c?pass1word"],
)
def test_secrets_are_refused_and_not_shown(text):
    with pytest.raises(UsageError, match="are read from the environment") as error:
        parse_url(text)
    assert "pass1word" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s3:/bucket/x",
        "s3:x",
        "s3://",
        "s3://bucket/../x",
        "hf://repo",
        "hf://datasets/repo",
        "hf://spaces/me/x",
        "kaggle://user/Some_slug",
        "nothing://x/y",
    ],
)
def test_incomplete_urls(text):
    with pytest.raises(UsageError, match="--backup"):
        parse_url(text)


def test_messages_have_no_secrets():
    environment = {"AWS_SECRET_ACCESS_KEY": "abcdefgh12", "HF_TOKEN": "hf_12345678", "HOME": "/home/somebody"}
    text = "403 for https://u:p@host/x?X-Amz-Signature=1 abcdefgh12 hf_12345678 in /home/somebody"
    assert redacted(text, environment) == "403 for https://host/x *** *** in /home/somebody"

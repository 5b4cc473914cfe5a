"""The configuration file of a command: what it may contain, and what a run writes."""

import pytest

from shoestring.base.errors import UsageError
from shoestring.training.run_directory.config_file import read_config, write_config


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.toml"


def test_values_are_those_of_a_command_line(file):
    file.write_text(
        '\ufeffrecipe = "temporal"\non = "kaggle-t4"\nlimit = 90\ndisk = "15GB"\n'
        "[set]\nepochs = 3\nlora.r = 8\nema = 1e-3\nlora_dora = true\nsize = 'tiny'\n"
    )
    config = read_config(file)
    assert (config.recipe, config.on, config.limit, config.disk) == ("temporal", "kaggle-t4", "90", "15GB")
    assert config.values == {"epochs": "3", "lora_r": "8", "ema": "0.001", "lora_dora": "true", "size": "tiny"}


def test_all_problems_are_reported_with_key_and_value(file):
    file.write_text(
        'recipes = "a"\nrecipe = ""\non = "kaggel-t4"\nlimit = true\ndisk = "15"\n[set]\nx = [1]\na.b=1\na_b=2'
    )
    with pytest.raises(UsageError, match=str(file)) as error:
        read_config(file)
    problems = "\n".join(error.value.problems)
    assert len(error.value.problems) == 7
    for text in (
        'recipes = "a": unknown key; did you mean recipe?',
        'recipe = "": expected a name',
        "on = \"kaggel-t4\": there is no target 'kaggel-t4'; did you mean kaggle-t4?",
        "limit = true: 'true' is not a duration",
        "disk = \"15\": '15' is not a size",
        "x = [1]: expected a text, a number, true or false",
        "a_b is set twice: '1' and '2'",
    ):
        assert text in problems


@pytest.mark.parametrize(
    "content", [b"x", b"\xff", b"set = 1", b"a = 1\na = 2", b"x = " + b"[" * 100000, b" " * (2 << 20)]
)
def test_damaged_file_is_one_error(file, content):
    file.write_bytes(content)
    with pytest.raises(UsageError, match=str(file)):
        read_config(file)


def test_file_of_a_run_is_read_as_it_was_written(file):
    values = {"a": 1, "b": 1e-5, "c": True, "d": 'quote " \\ \n\x7f ü', "e": None}
    write_config(file, values, recipe="/a b/mine.py:Mine", on="local", limit_seconds=0.25, disk_bytes=10**15 + 1)
    config = read_config(file)
    assert (config.recipe, config.on, config.limit) == ("/a b/mine.py:Mine", "local", "0.250s")
    assert config.disk == "1000000000000.001KB"
    assert config.values == {"a": "1", "b": "1e-05", "c": "true", "d": values["d"], "e": "none"}
    with pytest.raises(ValueError):
        write_config(file, {"a": "\udc80"}, recipe="x", on="local", limit_seconds=None, disk_bytes=None)
    assert read_config(file) == config and [path.name for path in file.parent.iterdir()] == ["run.toml"]

import os
from pathlib import Path

import pytest

from shoestring.base.errors import UsageError
from shoestring_recipes.finetune import templates
from tests.recipes.finetune.tokenizers import CHATML, CHATML_MARKED


def test_read_template_returns_the_file(tmp_path: Path) -> None:
    path = tmp_path / "chat.jinja"
    path.write_text(CHATML_MARKED, encoding="utf-8")
    assert templates.read_template(path) == CHATML_MARKED


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"{% for m in messages %}\n{{ m }",
            r"chat.jinja, line 2: the chat template is not valid Jinja: unexpected '}'",
        ),
        (b"{% generation %}{{ 1 }}", "line 1: the chat template is not valid Jinja: Unexpected end of template"),
        (b"\xff\xfe", "the chat template .*chat.jinja cannot be read: 'utf-8' codec"),
        (b"x" * (2**20 + 1), "cannot be read: it has 1.00 MiB, but at most 1.00 MiB are read"),
    ],
)
def test_a_file_that_is_no_template_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "chat.jinja"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        templates.read_template(path)


def test_a_pipe_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="it is a pipe, not a regular file"):
        templates.read_template(tmp_path / "pipe")
    with pytest.raises(UsageError, match="No such file or directory"):
        templates.read_template(tmp_path / "missing")


@pytest.mark.parametrize("tag", ["{% generation %}", "{%- generation -%}", "{%-generation%}", "{%+ generation %}"])
def test_has_generation_finds_the_tag(tag: str) -> None:
    assert templates.has_generation(f"text {tag} text")
    assert not templates.has_generation("{# generation #} add_generation_prompt")


def test_split_marks_returns_text_and_spans() -> None:
    begin, end = templates._BEGIN_MARK, templates._END_MARK
    text, spans = templates.split_marks(f"ab{begin}cde{end}f{begin}{end}{begin}g{end}")
    assert text == "abcdefg"
    assert [text[slice(*span)] for span in spans] == ["cde", "", "g"]


def test_a_template_never_reads_the_clock() -> None:
    template = """{{ strftime_now("%d %b %Y") }} {{ strftime_now( '%Y-%m-%d' ) }}"""
    assert templates.with_fixed_date(template) == '{{ "26 Jul 2024" }} {{ "2024-07-26" }}'


def test_the_generation_prompt_begins_with_a_whole_token() -> None:
    """Phi-3 writes `<|end|>` after a conversation and `<|assistant|>` for an answer, which begin alike."""

    def write(messages: templates.Sequence[templates.Message], prompt: bool) -> str:
        return "".join(f"{message['content']}\n" for message in messages) + ("<|assistant|>" if prompt else "<|end|>")

    assert templates.find_markup(write, ["<|end|>", "<|assistant|>"]).generation_prompt == "<|assistant|>"
    assert templates.find_markup(write, []).generation_prompt == "assistant|>"


def test_the_end_is_the_last_token_after_an_answer() -> None:
    markup = templates.Markup(after_answer="<|a|><|b|>\n")
    assert templates.find_end(markup, {"<|b|>": 2, "<|a|>": 1, "<|c|>": 3}) == 2
    assert templates.find_end(markup, {"<|c|>": 3}) is None


def test_misplaced_markup_is_that_of_this_template_or_the_opening_of_another() -> None:
    pattern = templates.misplaced_pattern(templates.Markup(text="<|im_start|>user"), ["<|im_start|>", "<|x|>"])
    assert pattern.search("see <|im_start|>")
    assert pattern.search(" [INST] hello")
    assert not pattern.search("see [INST] and <|x|>")
    assert CHATML.count("<|im_start|>") == 2

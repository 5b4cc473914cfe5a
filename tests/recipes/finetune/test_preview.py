from dataclasses import replace

from shoestring_recipes.finetune.inspection import inspect
from shoestring_recipes.finetune.preview import LEGEND, Segment, describe, preview, preview_text
from shoestring_recipes.finetune.rendering import Renderer
from shoestring_recipes.finetune.rows import Conversation, Pair
from shoestring_recipes.finetune.samples import Samples
from tests.recipes.finetune.tokenizers import make_tokenizer


def chat(question: str, answer: str) -> Conversation:
    messages = ({"role": "user", "content": question}, {"role": "assistant", "content": answer})
    return Conversation(place="chats.jsonl, line 1", messages=messages)


def test_a_sample_is_shown_as_the_model_receives_it() -> None:
    renderer = Renderer(make_tokenizer(), seq_len=100)
    rows = [chat("Hello", "é 😀\nThat is all."), chat("Hello", "Hello")]
    rows.append(replace(chat("hello! " * 120, "Hello"), place="chats.jsonl, line 3"))
    samples = renderer.render_all(rows)
    inspection = inspect(samples, renderer, rows)
    shown = preview(Samples(samples, rows), inspection, renderer, ())
    assert shown.samples == (
        (
            f"chats.jsonl, line 1, {len(samples[0])} tokens",
            (
                Segment(text="<|im_start|>user↵\nHello<|im_end|>↵\n<|im_start|>assistant↵\n", loss_mask=False),
                Segment(text="é 😀↵\nThat is all.<|im_end|>", loss_mask=True),
                Segment(text="↵\n", loss_mask=False),
            ),
        ),
    )
    assert shown.lengths == inspection.lengths
    facts = dict(shown.facts)
    assert facts["rows"] == "3"
    assert facts["rows in which nothing is learned"] == "1"
    lost = samples[2].full_length - 100
    assert facts["rows cut at seq_len=100"] == f"1 (33%), {lost} tokens lost: chats.jsonl, line 3"


def test_the_text_marks_learned_tokens_without_color() -> None:
    renderer = Renderer(make_tokenizer(), seq_len=100)
    rows = [chat("Hello", "That is all.")] * 4
    samples = renderer.render_all(rows)
    length, loss_tokens = len(samples[0]), int(samples[0].loss_mask.sum())
    text = preview_text(Samples(samples, rows), inspect(samples, renderer, rows), renderer)
    assert (
        text
        == f"""\
{LEGEND}

chats.jsonl, line 1, {length} tokens:
  <|im_start|>user↵
  Hello<|im_end|>↵
  <|im_start|>assistant↵
  ⟦That is all.<|im_end|>⟧↵

rows                     4
tokens                   {4 * length}, {length} in the longest row
learned tokens           {4 * loss_tokens} ({loss_tokens / length:.0%})
rows that teach to stop  4
rows cut at seq_len=100  0 (0%)

tokens of a row, before cutting
  21 to 25  ████████████████████████████████████████  4"""
    )


def test_both_answers_of_a_pair_and_refusals_are_shown() -> None:
    renderer = Renderer(make_tokenizer(None), seq_len=3)
    rows = [Pair(place="line 1", prompt="Hello", chosen=" hello! hello!", rejected=" That is all.")]
    samples = renderer.render_pairs(rows)
    inspection = inspect(samples, renderer, rows)
    text = preview_text(Samples(samples, rows), inspection, renderer, inspection.notes)
    assert "line 1, chosen, 3 tokens" in text
    assert "line 1, rejected, 3 tokens" in text
    assert "\nnote: seq_len=3 cuts 1 of 1 row (100%)" in text
    assert "\nrefused: the stop token is never learned: every row is longer than seq_len=3" in text


def test_a_bin_with_few_rows_has_a_bar() -> None:
    renderer = Renderer(make_tokenizer(), seq_len=1000)
    rows = [chat("Hello", "Hello")] * 200 + [chat("Hello", "Hello " * 50)]
    samples = renderer.render_all(rows)
    text = preview_text(Samples(samples, rows), inspect(samples, renderer, rows), renderer)
    bars = [line.count("█") for line in text.splitlines() if " to " in line and line.startswith("  ")]
    assert (bars[0], bars[-1]) == (40, 1)
    assert sum(bars) == 41


def test_the_first_row_that_is_not_cut_is_shown() -> None:
    renderer = Renderer(make_tokenizer(), seq_len=50)
    rows = [chat("Hello", "hello! " * 50), chat("Hello", "That is all.")]
    samples = renderer.render_all(rows)
    inspection = inspect(samples, renderer, rows)
    assert "⟦That is all.<|im_end|>⟧" in preview_text(Samples(samples, rows), inspection, renderer)
    assert "⟦hello! " in preview_text(Samples(samples[:1], rows[:1]), inspection, renderer)
    assert preview_text(Samples(samples, rows), None, renderer) == ""
    assert preview_text(Samples([], []), inspection, renderer) == ""


def test_describe_returns_the_place_and_the_beginning() -> None:
    renderer = Renderer(make_tokenizer(), seq_len=500)
    rows = [chat("Hello", "hello! " * 50)]
    samples = Samples(renderer.render_all(rows), rows)
    description = describe(samples, 0, renderer)
    assert description["text"].startswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nhello! hello!")
    assert len(renderer.prompt_text(description.pop("text"))) == 60
    loss_mask = int(samples[0].loss_mask.sum())
    assert description == {"place": "chats.jsonl, line 1", "tokens": len(samples[0]), "learned_tokens": loss_mask}
    pairs = [Pair(place="line 1", prompt="Hello", chosen=" four", rejected=" hello")]
    pair = Samples(renderer.render_pairs(pairs), pairs)
    assert describe(pair, 0, renderer)["text"] == "Hello four<|im_end|>"
    assert describe(pair, 0, renderer)["tokens"] == len(pair[0].chosen) + len(pair[0].rejected)


def test_answers_that_are_not_learned_are_marked_with_the_reason() -> None:
    renderer = Renderer(make_tokenizer(), seq_len=100)
    messages = ({"role": "user", "content": "Hello"}, {"role": "assistant", "content": "That is all.", "weight": 0})
    rows = [chat("Hello", "It is four."), Conversation(place="line 2", messages=(*messages, *rows_of("Hello", "four")))]
    samples = renderer.render_all(rows)
    shown = preview(Samples(samples, rows), inspect(samples, renderer, rows), renderer, ["a note"])
    assert [title.partition(", ")[0] for title, _ in shown.samples] == ["chats.jsonl", "line 2"]
    excluded = [segment for _, segments in shown.samples for segment in segments if segment.reason]
    assert excluded == [Segment(text="That is all.<|im_end|>", loss_mask=False, reason="message 2: weight 0")]
    text = preview_text(Samples(samples, rows), inspect(samples, renderer, rows), renderer, ["a note"])
    assert "\n  ⟪That is all.<|im_end|>⟫↵\n" in text and "\nnot learned: message 2: weight 0\n" in text
    assert text.count("note: a note") == 1


def rows_of(question: str, answer: str) -> tuple[dict[str, str], ...]:
    return ({"role": "user", "content": question}, {"role": "assistant", "content": answer})

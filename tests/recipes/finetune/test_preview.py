from shoestring.recipes.finetune.inspection import inspect
from shoestring.recipes.finetune.preview import Segment, preview_sample, preview_text
from shoestring.recipes.finetune.rendering import Renderer
from shoestring.recipes.finetune.rows import Conversation, Pair
from tests.recipes.finetune.tokenizers import make_tokenizer


def chat(question: str, answer: str) -> Conversation:
    messages = ({"role": "user", "content": question}, {"role": "assistant", "content": answer})
    return Conversation(place="chats.jsonl, line 1", messages=messages)


def test_a_sample_is_shown_as_the_model_receives_it() -> None:
    renderer = Renderer(make_tokenizer(), seq_len=100)
    rows = [chat("Hello", "é 😀\nThat is all."), chat("Hello", "Hello"), chat("hello! " * 120, "Hello")]
    samples = renderer.render_all(rows)
    inspection = inspect(samples, renderer, rows)
    preview = preview_sample(samples[0], renderer, inspection)
    assert preview.samples == (
        (
            f"sample, {len(samples[0])} tokens",
            (
                Segment(text="<|im_start|>user↵\nHello<|im_end|>↵\n<|im_start|>assistant↵\n", learnt=False),
                Segment(text="é 😀↵\nThat is all.<|im_end|>", learnt=True),
                Segment(text="↵\n", learnt=False),
            ),
        ),
    )
    assert preview.lengths == inspection.lengths
    facts = dict(preview.facts)
    assert facts["rows"] == "3"
    assert facts["rows in which nothing is learnt"] == "1"
    lost = samples[2].full_length - 100
    assert facts["rows cut at seq_len=100"] == f"1 (33%), {lost} tokens lost"


def test_the_text_marks_learnt_tokens_without_colour() -> None:
    renderer = Renderer(make_tokenizer(), seq_len=100)
    rows = [chat("Hello", "That is all.")] * 4
    samples = renderer.render_all(rows)
    length, learnt = len(samples[0]), int(samples[0].learnt.sum())
    text = preview_text(preview_sample(samples[0], renderer, inspect(samples, renderer, rows)))
    assert (
        text
        == f"""\
sample, {length} tokens (what is between ⟦ and ⟧ is learnt; ↵ is a line feed):
  <|im_start|>user↵
  Hello<|im_end|>↵
  <|im_start|>assistant↵
  ⟦That is all.<|im_end|>⟧↵

rows                     4
tokens                   {4 * length}, {length} in the longest row
learnt tokens            {4 * learnt} ({learnt / length:.0%})
rows that teach to stop  4
rows cut at seq_len=100  0 (0%)

tokens of a row, before cutting
  21 to 25  ████████████████████████████████████████  4"""
    )


def test_both_answers_of_a_pair_and_refusals_are_shown() -> None:
    renderer = Renderer(make_tokenizer(None), seq_len=3)
    rows = [Pair(place="", prompt="Hello", chosen=" hello! hello!", rejected=" That is all.")]
    samples = renderer.render_pairs(rows)
    text = preview_text(preview_sample(samples[0], renderer, inspect(samples, renderer, rows)))
    assert "chosen, 3 tokens" in text
    assert "rejected, 3 tokens" in text
    assert "\nnote: seq_len=3 cuts 1 of 1 row (100%)" in text
    assert "\nrefused: the stop token is never learnt: every row is longer than seq_len=3" in text


def test_a_bin_with_few_rows_has_a_bar() -> None:
    renderer = Renderer(make_tokenizer(), seq_len=1000)
    rows = [chat("Hello", "Hello")] * 200 + [chat("Hello", "Hello " * 50)]
    samples = renderer.render_all(rows)
    text = preview_text(preview_sample(samples[0], renderer, inspect(samples, renderer, rows)))
    bars = [line.count("█") for line in text.splitlines() if " to " in line and line.startswith("  ")]
    assert (bars[0], bars[-1]) == (40, 1)
    assert sum(bars) == 41

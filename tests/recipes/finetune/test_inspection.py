import numpy
import pytest

from shoestring.base.errors import DataError
from shoestring_recipes.finetune.inspection import Bin, Inspection, inspect, require_learnable
from shoestring_recipes.finetune.rendering import Renderer
from shoestring_recipes.finetune.rows import Completion, Conversation, Pair, Row, Text
from tests.recipes.finetune.tokenizers import CHATML, CHATML_MARKED, CHATML_TOKENS, make_tokenizer

STOPLESS = CHATML.replace("<|im_end|>\n{% endfor %}", "\n{% endfor %}")
STOP_OUTSIDE_THE_MARKS = CHATML_MARKED.replace("<|im_end|>{% endgeneration %}", "{% endgeneration %}<|im_end|>")
LINE_FEED_IN_THE_MARKS = CHATML_MARKED.replace("<|im_end|>{% endgeneration %}", "<|im_end|>\n{% endgeneration %}")


def chat(question: str, *answers: str, line: int = 1) -> Conversation:
    turns = [
        {"role": role, "content": content}
        for answer in answers
        for role, content in (("user", question), ("assistant", answer))
    ]
    return Conversation(place=f"chats.jsonl, line {line}", messages=tuple(turns))


def inspect_rows(renderer: Renderer, *rows: Row) -> Inspection:
    return inspect(renderer.render_all(rows), renderer, rows)


def test_an_inspection_counts_rows_and_tokens() -> None:
    renderer = Renderer(make_tokenizer(), seq_len=30)
    rows = [chat("Hello", "That is all."), chat("Hello", "hello! " * 30), chat("hello! " * 30, "Hello")]
    samples = renderer.render_all(rows)
    inspection = inspect(samples, renderer, rows)
    assert (inspection.rows, inspection.cut, inspection.unlearnable, inspection.stopping) == (3, 2, 1, 1)
    assert inspection.tokens == sum(map(len, samples))
    assert inspection.tokens_lost == sum(sample.full_length - len(sample) for sample in samples) > 0
    assert inspection.loss_tokens == sum(int(sample.loss_mask.sum()) for sample in samples)
    assert inspection.longest == max(sample.full_length for sample in samples)
    assert sum(part.rows for part in inspection.lengths) == 3
    assert inspection.cut_share == 2 / 3
    assert inspection.loss_share == inspection.loss_tokens / inspection.tokens
    assert inspection.notes == (
        "Training leaves out 1 of 3 rows, in which nothing is learned.",
        f"seq_len=30 cuts 2 of 3 rows (67%): {inspection.tokens_lost} tokens are lost, the end of the last answer of "
        "each row among them.",
    )
    require_learnable(inspection)


@pytest.mark.parametrize("template", [STOPLESS, STOP_OUTSIDE_THE_MARKS])
def test_a_template_whose_stop_token_is_not_learned_is_refused(template: str) -> None:
    inspection = inspect_rows(Renderer(make_tokenizer(template), seq_len=100), chat("Hello", "That is all."))
    assert inspection.refusals == (
        "the stop token is never learned: no answer ends with <|im_end|>, so the model would not learn to stop; use a "
        "template that writes it after each answer (within {% generation %}, if it marks answers), as one token of "
        "this tokenizer",
    )
    with pytest.raises(DataError, match="training on this data would be futile") as caught:
        require_learnable(inspection)
    assert caught.value.problems == inspection.refusals


def test_a_template_whose_stop_token_the_tokenizer_lacks_is_refused() -> None:
    tokenizer = make_tokenizer(CHATML, ("<|endoftext|>",), eos="<|endoftext|>")
    inspection = inspect_rows(Renderer(tokenizer, seq_len=100), chat("Hello", "That is all."))
    assert "no answer ends with <|endoftext|>" in inspection.refusals[0]


def test_a_tokenizer_without_any_stop_token_is_refused() -> None:
    renderer = Renderer(make_tokenizer(None, (), eos=None), seq_len=100)
    inspection = inspect_rows(renderer, Text(place="", text="Hello"))
    assert "neither the tokenizer nor the chat template has one" in inspection.refusals[0]


def test_white_space_may_follow_the_stop_token() -> None:
    assert not inspect_rows(Renderer(make_tokenizer(LINE_FEED_IN_THE_MARKS), seq_len=100), chat("a", "b")).refusals
    assert not inspect_rows(Renderer(make_tokenizer(), seq_len=100, train_on="all"), chat("a", "b")).refusals


def test_a_stop_token_that_is_the_padding_token_is_learned() -> None:
    tokenizer = make_tokenizer(eos="<|im_end|>", pad="<|im_end|>")
    renderer = Renderer(tokenizer, seq_len=100)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    for row in (chat("a", "b"), Completion(place="", prompt="a", completion="b"), Text(place="", text="a")):
        sample = renderer.render(row)
        assert sample.tokens[sample.loss_mask][-1] == tokenizer.eos_token_id
        assert not inspect([sample], renderer, [row]).refusals


def test_rows_that_are_all_cut_before_their_end_are_refused() -> None:
    renderer = Renderer(make_tokenizer(), seq_len=40)
    inspection = inspect_rows(renderer, chat("Hello", "hello! " * 40), chat("Hello", "hello! " * 30))
    assert inspection.refusals == (
        "the stop token is never learned: every row is longer than seq_len=40, so that the end of its last answer is "
        "cut off and the model would not learn to stop; set a larger seq_len",
    )


def test_a_cut_row_teaches_to_stop_by_an_earlier_answer() -> None:
    renderer, row = Renderer(make_tokenizer(), seq_len=60), chat("Hello", "Hello", "hello! " * 30)
    assert renderer.render(row).loss_mask[-1]  # of the last answer, whose end is cut off
    inspection = inspect_rows(renderer, row)
    assert (inspection.cut, inspection.stopping, inspection.refusals) == (1, 1, ())


def test_rows_without_anything_to_learn_are_refused() -> None:
    renderer = Renderer(make_tokenizer(), seq_len=40)
    assert inspect_rows(renderer, chat("hello! " * 40, "Hello")).refusals == (
        "nothing is left to learn: in every row the answers begin after the first seq_len=40 tokens; set a larger "
        "seq_len",
    )
    question = Conversation(place="", messages=({"role": "user", "content": "Hello"},))
    assert inspect_rows(renderer, question).refusals == (
        "nothing is learned: no row has an answer of the assistant that follows a prompt",
    )


def test_a_template_that_is_applied_twice_is_refused() -> None:
    rows = [chat("<|im_start|>user\nHello<|im_end|>", "Hello", line=line) for line in range(1, 8)]
    foreign = chat("[INST] Hello [/INST]", "Hello", line=9)
    inspection = inspect_rows(Renderer(make_tokenizer(), seq_len=100), chat("Hello", "Hello"), *rows, foreign)
    assert inspection.refusals == (
        "a chat template would be applied twice in 8 rows, whose messages contain its markup: "
        "chats.jsonl, line 1 (<|im_start|>), chats.jsonl, line 2 (<|im_start|>), chats.jsonl, line 3 (<|im_start|>), "
        "chats.jsonl, line 4 (<|im_start|>), chats.jsonl, line 5 (<|im_start|>), and 3 more; remove it from the "
        "messages, or give conversations that are rendered already as text",
    )


def test_markup_in_texts_and_in_parts_of_messages() -> None:
    renderer = Renderer(make_tokenizer(), seq_len=100)
    assert not inspect_rows(renderer, Text(place="", text="<|im_start|>user\nHello<|im_end|>")).refusals
    answer = {"role": "assistant", "content": [{"type": "text", "text": "Hello<|im_end|>"}]}
    assert renderer.misplaced_markup(Conversation(place="", messages=(answer,))) == "<|im_end|>"
    pair = Pair(place="", prompt=(), chosen=({"content": "a"},), rejected=({"content": "<|im_start|>"},))
    assert renderer.misplaced_markup(pair) == "<|im_start|>"
    assert CHATML_TOKENS[2] == "<|endoftext|>"  # special, but this template does not write it
    assert renderer.misplaced_markup(chat("<|endoftext|>", "a")) is None


def test_answers_without_a_stop_token_are_counted() -> None:
    template = CHATML.replace("<|im_end|>", "{% if message['content'] != 'endless' %}<|im_end|>{% endif %}")
    inspection = inspect_rows(Renderer(make_tokenizer(template), seq_len=100), chat("a", "b"), chat("a", "endless"))
    assert inspection.refusals == ()
    assert inspection.notes == ("The last answer of 1 of 2 rows ends without a stop token.",)


def test_a_pair_is_one_row() -> None:
    renderer = Renderer(make_tokenizer(), seq_len=30)
    rows = [
        Pair(place="", prompt="a", chosen="Hello", rejected="hello! " * 30),
        Pair(place="", prompt="a", chosen="Hello", rejected="That"),
        Pair(place="", prompt="hello! " * 30, chosen="Hello", rejected="That"),
    ]
    samples = renderer.render_pairs(rows)
    inspection = inspect(samples, renderer, rows)
    assert (inspection.rows, inspection.cut, inspection.unlearnable, inspection.stopping) == (3, 2, 1, 1)
    assert inspection.tokens == sum(len(pair.chosen) + len(pair.rejected) for pair in samples)


def test_lengths_are_a_histogram_of_round_bins() -> None:
    renderer = Renderer(make_tokenizer(None), seq_len=5)
    rows = [Text(place="", text="x" * length) for length in (9, 10, 99, 119)]  # and the end token
    assert inspect_rows(renderer, *rows).lengths == (
        Bin(low=1, high=10, rows=1),
        Bin(low=11, high=20, rows=1),
        *(Bin(low=low + 1, high=low + 10, rows=0) for low in range(20, 90, 10)),
        Bin(low=91, high=100, rows=1),
        Bin(low=101, high=110, rows=0),
        Bin(low=111, high=120, rows=1),
    )


def test_no_rows_are_no_refusal() -> None:
    renderer = Renderer(make_tokenizer(), seq_len=5)
    inspection = inspect([], renderer, [])
    assert (inspection.refusals, inspection.lengths, inspection.longest) == ((), (), 0)
    assert numpy.isfinite(inspection.cut_share + inspection.loss_share)

"""Our writer gives the tokens that transformers' `generate` gives, under the same random numbers."""

import warnings

import pytest
import torch
from peft import get_peft_model
from torch.nn import functional

from shoestring.recipes.chart import Chart, Options, training
from shoestring.recipes.chart.policy import SIZES, adapters
from shoestring.recipes.chart.processing import processor
from shoestring.recipes.chart.writing import firsts, write

LENGTH, IMAGE = 12, SIZES["tiny"].image_token


@pytest.fixture(scope="module")
def written():
    """(policy, its tokenizer, what the processor makes of six rows): prompts of three lengths, three of them twice."""
    options = Options(size="tiny", weights="fp32")
    charts = Chart(options).data()["train"]
    torch.manual_seed(0)
    policy, tokenizer = training.policy(options, charts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        policy = get_peft_model(policy, adapters(8))
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)  # they begin at 0, and an adapter that is left out would not show
    rows = [charts[number] for number in (0, 0, 3, 1, 1, 1)]
    for row, more in zip(rows, ("", "", " Quickly!", " Tell me, please.", " Tell me, please.", " Again."), strict=True):
        row["prompt"][1]["content"] += more
    given = processor(tokenizer, SIZES["tiny"].tokens).apply_chat_template(
        conversation=[training._conversation(row) for row in rows],
        add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt",
        processor_kwargs={"padding": True},
    )  # fmt: skip
    return policy, tokenizer, given


def ours(written, *, sampled, ends=None, length=LENGTH):
    policy, tokenizer, given = written
    torch.manual_seed(1)
    ends = [tokenizer.eos_token_id] if ends is None else ends
    return write(policy, given, length=length, ends=ends, padding=tokenizer.pad_token_id, sampled=sampled)


def theirs(written, *, sampled):
    policy, tokenizer, given = written
    chosen = {"do_sample": True, "top_k": 0} if sampled else {"do_sample": False}
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        tokens = policy.eval().generate(
            **given, max_new_tokens=LENGTH, suppress_tokens=[IMAGE], pad_token_id=tokenizer.pad_token_id, **chosen
        )
    return tokens[:, given["input_ids"].shape[1] :]


@pytest.mark.parametrize("sampled", [False, True])
def test_the_tokens_are_those_of_generate(written, sampled):
    assert not written[2]["attention_mask"].all()  # some prompts are padded
    expected = theirs(written, sampled=sampled)
    assert len(set(map(tuple, expected.tolist()))) >= 4
    assert torch.equal(ours(written, sampled=sampled), expected)


def test_without_padding_they_are_as_well(written):
    policy, tokenizer, given = written
    rows = {name: given[name][:2] for name in ("input_ids", "attention_mask", "image_grid_thw")}
    rows["pixel_values"] = given["pixel_values"][: SIZES["tiny"].patches * 2]
    short = rows["attention_mask"].argmax(dim=1).max()
    for name in ("input_ids", "attention_mask"):
        rows[name] = rows[name][:, short:]
    assert rows["attention_mask"].all()
    assert torch.equal(ours((policy, tokenizer, rows), sampled=False), ours(written, sampled=False)[:2])


def test_a_prompt_is_read_once_for_all_its_completions(written):
    places, prompts = firsts(written[2])
    assert places == [0, 0, 1, 2, 2, 3]
    assert prompts["input_ids"].shape[0] == 4 and prompts["pixel_values"].shape[0] == 4 * SIZES["tiny"].patches
    other = {**written[2], "pixel_values": written[2]["pixel_values"].clone()}
    other["pixel_values"][-1] += 1  # another image to the same question is another prompt
    assert firsts({**other, "input_ids": other["input_ids"][:1].expand(6, -1)})[0] == [0, 0, 1, 2, 2, 3]


def test_after_its_end_a_text_is_padded_and_when_all_have_ended_no_more_is_written(written):
    free = ours(written, sampled=True, ends=[])
    end = free[0, 3].item()
    ended = ours(written, sampled=True, ends=[end])
    first = free[0].tolist().index(end)
    assert ended[0, first] == end and (ended[0, first + 1 :] == written[1].pad_token_id).all()
    everything = ours(written, sampled=True, ends=list(range(SIZES["tiny"].text["vocab_size"])))
    assert everything.shape == (6, 1)


def test_an_images_place_is_never_written(written, monkeypatch):
    policy, *_ = written
    head = policy.get_base_model().lm_head
    monkeypatch.setattr(head, "forward", lambda hidden: functional.one_hot(
        torch.full(hidden.shape[:-1], IMAGE), SIZES["tiny"].text["vocab_size"]) * 50.0)  # fmt: skip
    assert (ours(written, sampled=True) != IMAGE).all()


def test_it_writes_without_dropout_and_leaves_the_policy_in_training(written):
    policy, *_ = written
    policy.train()
    first = ours(written, sampled=False)
    assert policy.training and all(module.training for module in policy.modules())
    assert torch.equal(first, theirs(written, sampled=False))


def test_generate_reads_what_is_written_once_as_well(written, monkeypatch):
    """The guide's way writes with it; without a cache each token would cost all those before it."""
    policy, *_ = written
    layer, seen = policy.get_base_model().model.language_model.layers[0], []
    real = layer.forward
    monkeypatch.setattr(layer, "forward", lambda hidden, **given: seen.append(hidden.shape[1]) or real(hidden, **given))
    theirs(written, sampled=False)
    assert len(seen) == LENGTH and set(seen[1:]) == {1}

"""Our generator returns the same tokens as transformers' `generate` with the same random numbers."""

import warnings

import pytest
import torch
import transformers
from peft import get_peft_model
from torch.nn import functional

from shoestring.integrations.huggingface import versions
from shoestring_recipes.chart import Chart, Options, building, training
from shoestring_recipes.chart.policy import SIZES, lora_config
from shoestring_recipes.chart.processing import build_processor, encode_prompts
from shoestring_recipes.chart.rollout import simulate_generation
from shoestring_recipes.chart.writing import Decoder, generate, unique_prompts

LENGTH, IMAGE = 12, SIZES["tiny"].image_token


@pytest.fixture(scope="module")
def prompted_policy():
    """Return (policy, tokenizer, processed inputs of six rows): prompts of three lengths, four different ones."""
    options = Options(size="tiny", weights="fp32")
    charts = Chart(options).data()["train"]
    torch.manual_seed(0)
    policy, tokenizer = building.build_policy(options, charts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        policy = get_peft_model(policy, lora_config(8))
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)  # with the initial zeros, a missing adapter would not show
    rows = [charts[number] for number in (0, 0, 3, 1, 1, 1)]
    for row, suffix in zip(
        rows, ("", "", " Quickly!", " Tell me, please.", " Tell me, please.", " Again."), strict=True
    ):
        row["prompt"][1]["content"] += suffix
    processor = build_processor(tokenizer, SIZES["tiny"].tokens)
    inputs = encode_prompts(processor, [training.conversation(row) for row in rows])
    return policy, tokenizer, inputs


def run_ours(prompted_policy, *, do_sample, end_tokens=None, length=LENGTH):
    policy, tokenizer, inputs = prompted_policy
    torch.manual_seed(1)
    end_tokens = [tokenizer.eos_token_id] if end_tokens is None else end_tokens
    padding = tokenizer.pad_token_id
    return generate(policy, inputs, length=length, end_tokens=end_tokens, padding=padding, do_sample=do_sample)


def run_transformers(prompted_policy, *, do_sample):
    policy, tokenizer, inputs = prompted_policy
    options = {"do_sample": True, "top_k": 0} if do_sample else {"do_sample": False}
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        tokens = policy.eval().generate(
            **inputs, max_new_tokens=LENGTH, suppress_tokens=[IMAGE], pad_token_id=tokenizer.pad_token_id, **options
        )
    return tokens[:, inputs["input_ids"].shape[1] :]


def comparable_rows(inputs):
    """Return the rows for which transformers' `generate` counts the positions of tokens after the prompt as it should.

    4.56 counts those of padded prompts from a smaller number: it adds `rope_deltas`, which are relative to the length
    with padding, to positions without (`Qwen2_5_VLForConditionalGeneration.prepare_inputs_for_generation`).
    """
    is_complete = inputs["attention_mask"].all(dim=1)
    return is_complete if transformers.__version__.startswith("4.") else torch.ones_like(is_complete)


@pytest.mark.parametrize("do_sample", [False, True])
def test_tokens_match_transformers_generate(prompted_policy, do_sample):
    assert not prompted_policy[2]["attention_mask"].all()  # some prompts are padded
    expected = run_transformers(prompted_policy, do_sample=do_sample)
    assert len(set(map(tuple, expected.tolist()))) >= 4
    rows = comparable_rows(prompted_policy[2])
    assert rows.any() and torch.equal(run_ours(prompted_policy, do_sample=do_sample)[rows], expected[rows])


def test_tokens_match_without_padding(prompted_policy):
    policy, tokenizer, inputs = prompted_policy
    rows = {name: inputs[name][:2] for name in ("input_ids", "attention_mask", "image_grid_thw")}
    rows["pixel_values"] = inputs["pixel_values"][: SIZES["tiny"].patches * 2]
    padding = rows["attention_mask"].argmax(dim=1).max()
    for name in ("input_ids", "attention_mask"):
        rows[name] = rows[name][:, padding:]
    assert rows["attention_mask"].all()
    # Without end tokens: the generator stops when all texts have ended.
    expected = run_ours(prompted_policy, do_sample=False, end_tokens=[])[:2]
    assert torch.equal(run_ours((policy, tokenizer, rows), do_sample=False, end_tokens=[]), expected)


def test_a_prompt_is_processed_once_for_its_completions(prompted_policy):
    *_, inputs = prompted_policy
    indices, prompts = unique_prompts(inputs)
    assert indices == [0, 0, 1, 2, 2, 3]
    assert prompts["input_ids"].shape[0] == 4 and prompts["pixel_values"].shape[0] == 4 * SIZES["tiny"].patches
    changed = {**inputs, "pixel_values": inputs["pixel_values"].clone()}
    changed["pixel_values"][-1] += 1  # the same question about another image is another prompt
    assert unique_prompts({**changed, "input_ids": changed["input_ids"][:1].expand(6, -1)})[0] == [0, 0, 1, 2, 2, 3]


def test_generation_pads_ended_texts_and_stops_after_all(prompted_policy):
    unlimited = run_ours(prompted_policy, do_sample=True, end_tokens=[])
    end = unlimited[0, 3].item()
    tokens = run_ours(prompted_policy, do_sample=True, end_tokens=[end])
    first = unlimited[0].tolist().index(end)
    assert tokens[0, first] == end and (tokens[0, first + 1 :] == prompted_policy[1].pad_token_id).all()
    every_token = list(range(SIZES["tiny"].text["vocab_size"]))
    assert run_ours(prompted_policy, do_sample=True, end_tokens=every_token).shape == (6, 1)


def test_the_image_token_is_never_generated(prompted_policy, monkeypatch):
    policy, *_ = prompted_policy
    head = policy.get_base_model().lm_head
    monkeypatch.setattr(head, "forward", lambda hidden: functional.one_hot(
        torch.full(hidden.shape[:-1], IMAGE), SIZES["tiny"].text["vocab_size"]) * 50.0)  # fmt: skip
    assert (run_ours(prompted_policy, do_sample=True) != IMAGE).all()


def test_generation_disables_dropout_and_restores_training_mode(prompted_policy):
    policy, *_ = prompted_policy
    policy.train()
    tokens = run_ours(prompted_policy, do_sample=False)
    assert policy.training and all(module.training for module in policy.modules())
    rows = comparable_rows(prompted_policy[2])
    assert torch.equal(tokens[rows], run_transformers(prompted_policy, do_sample=False)[rows])


def test_transformers_generate_uses_a_cache(prompted_policy, monkeypatch):
    """The guide's code calls `generate`; without a cache each token would process all tokens before it."""
    policy, *_ = prompted_policy
    layer, lengths = policy.get_base_model().model.language_model.layers[0], []
    original = layer.forward

    def record_length(hidden, **options):
        lengths.append(hidden.shape[1])
        return original(hidden, **options)

    monkeypatch.setattr(layer, "forward", record_length)
    run_transformers(prompted_policy, do_sample=False)
    assert len(lengths) == LENGTH and set(lengths[1:]) == {1}


def test_a_text_may_end_with_the_token_before_an_image(prompted_policy):
    """A policy of random weights writes this token often; transformers 5.0 failed at it."""
    policy, _, inputs = prompted_policy
    model = policy.get_base_model()
    begins = torch.full((6, 1), model.config.vision_start_token_id)
    ends = torch.full((6, 1), model.config.vision_end_token_id)
    images = {name: inputs[name] for name in ("pixel_values", "image_grid_thw")}
    logits = []
    for token in (begins, ends):
        tokens = torch.cat((inputs["input_ids"], token), dim=1)
        mask = torch.cat((inputs["attention_mask"], torch.ones_like(token)), dim=1)
        positions = versions.find_positions(
            model.model,
            tokens,
            is_image=tokens == model.config.image_token_id,
            grids=images["image_grid_thw"],
            mask=mask,
        )
        outputs = model(input_ids=tokens, attention_mask=mask, position_ids=positions, logits_to_keep=2, **images)
        logits.append(outputs.logits)
    assert torch.equal(logits[0][:, 0], logits[1][:, 0])  # of the token before
    assert not torch.equal(logits[0][:, 1], logits[1][:, 1])


def test_the_planned_rollout_counts_the_tokens_of_training_and_has_its_cache(prompted_policy, monkeypatch):
    decoders = []
    decode = Decoder.__call__
    monkeypatch.setattr(Decoder, "__call__", lambda *arguments: decoders.append(arguments[0]) or decode(*arguments))
    inputs = prompted_policy[2]
    run_ours(prompted_policy, do_sample=True, end_tokens=[])
    trained, tokens = [tensor.shape for tensor in decoders[-1].cache], len(decoders)

    monkeypatch.setattr("shoestring_recipes.chart.rollout.sample_tokens", lambda _: None)
    rows, prompt = inputs["input_ids"].shape
    recipe = Chart(Options(size="tiny", weights="fp32", prompt_len=prompt, completion_len=LENGTH))
    with torch.no_grad():
        steps = [*simulate_generation(recipe.model().eval(), recipe.batch(rows), prompts=4, groups=1)]
    assert [tensor.shape for tensor in steps[-1].state] == trained
    assert sum(step.times for step in steps[1:]) == tokens

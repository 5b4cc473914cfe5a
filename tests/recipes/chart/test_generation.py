from typing import Any

import pytest
import torch
from transformers import DynamicCache

from shoestring.hardware.targets import find
from shoestring.recipe.finding import load
from shoestring.recipes.chart import Chart, Options
from shoestring.recipes.chart.generation import decisive_steps, grow, sampled, tensors
from shoestring.recipes.chart.policy import SIZES, Batch, Policy
from shoestring.settings import Settings
from shoestring.trace import Tracer
from shoestring.trace.record import Alloc, Free, Phase, Trace

TINY: dict[str, Any] = {"size": "tiny", "prompt_len": 40, "completion_len": 6, "weights": "fp32"}
KEY_VALUE_BYTES = 2 * 2 * 2 * 16 * 4
"""Of a token: keys and values, of two layers, two heads, 16 numbers, fp32."""


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.manual_seed(0)
    made = Chart(Options(**TINY)).model().eval()
    with torch.no_grad():
        for weights in made.parameters():
            if weights.dim() > 1:
                weights.mul_(5)  # as initialised, what was read before hardly matters
    return made


def drawn(size: int) -> Batch:
    torch.manual_seed(1)
    batch = Chart(Options(**TINY)).batch(size)
    words = torch.randint(6, 512, batch.tokens.shape)
    tokens = torch.where(batch.tokens == SIZES["tiny"].image_token, batch.tokens, words)
    return batch._replace(tokens=tokens, patches=torch.randn_like(batch.patches))


@torch.no_grad()
def test_a_token_after_the_cache_has_the_scores_of_the_whole(policy: Policy) -> None:
    batch = drawn(2)
    prompt = batch.tokens.shape[1] - batch.completions.shape[1]
    cache = DynamicCache()
    cached = [policy.scores(batch, slice(0, prompt), cache)]
    cached += [policy.scores(batch, slice(place, place + 1), cache) for place in range(prompt, prompt + 5)]
    chosen = torch.cat(cached, dim=1).log_softmax(dim=-1).gather(-1, batch.tokens[:, prompt:, None]).squeeze(-1)
    torch.testing.assert_close(chosen, policy(batch), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_the_cache_grows_from_the_prompt_to_all_but_the_last_token(policy: Policy) -> None:
    lengths = [kept[0].shape[2] for kept in decisive_steps(policy, drawn(2))]
    assert lengths == [40, 41, 44, 45]


@torch.no_grad()
@pytest.mark.parametrize(("completion_len", "lengths"), [(1, [40]), (2, [40, 40, 41]), (3, [40, 41, 42])])
def test_short_completions_have_fewer_steps(policy: Policy, completion_len: int, lengths: list[int]) -> None:
    batch = Chart(Options(**{**TINY, "completion_len": completion_len})).batch(1)
    assert [kept[-1].shape[2] for kept in decisive_steps(policy, batch)] == lengths


@torch.no_grad()
def test_what_lies_between_is_followed_in_strides(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoestring.recipes.chart.generation.STRIDE", 2)
    assert [kept[0].shape[2] for kept in decisive_steps(policy, drawn(1))] == [40, 41, 43, 44, 45]


def test_growing_replaces_a_layer_before_the_next(policy: Policy) -> None:
    cache = DynamicCache()
    with torch.no_grad():
        policy.scores(drawn(2), slice(0, 40), cache)
    grow(cache, 50)
    assert {kept.shape for kept in tensors(cache)} == {(2, 2, 50, 16)}
    grow(cache, 45)
    assert {kept.shape[2] for kept in tensors(cache)} == {50}


def test_a_token_is_drawn_by_its_probability() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([[[0.0, 1.0, -100.0]]], dtype=torch.float16).expand(4000, 1, 3)
    shares = sampled(logits).flatten().bincount(minlength=3) / 4000
    torch.testing.assert_close(shares, torch.tensor([1.0, torch.e, 0.0]) / (1 + torch.e), atol=0.03, rtol=0)


def test_a_full_model_keeps_36864_bytes_of_a_token() -> None:
    text = SIZES["full"].config().text_config
    width = text.hidden_size // text.num_attention_heads
    assert 2 * text.num_hidden_layers * text.num_key_value_heads * width * 2 == 36_864


@pytest.fixture(scope="module")
def trace() -> Trace:
    with Tracer(load("chart", {**TINY, "completion_len": "200"})) as tracer:
        settings = Settings(micro_batch=1, precision="fp32", checkpointing="no")
        return tracer.trace(settings, accumulate=4, device=find("t4").device)


def test_a_trace_has_the_cache_of_all_of_an_updates_completions(trace: Trace) -> None:
    live, most = 0, 0
    phase = ""
    for event in trace.events:
        if isinstance(event, Phase):
            phase = event.name
        elif isinstance(event, Alloc | Free) and trace.storages[event.storage].part == "KV cache":
            live += trace.storages[event.storage].bytes * (1 if isinstance(event, Alloc) else -1)
            most = max(most, live)
            assert phase in ("generation", "forward")
    assert live == 0
    # At the last step one layer's keys are there twice, old and new.
    last, before = 4 * 239 * KEY_VALUE_BYTES, 4 * 238 * KEY_VALUE_BYTES // 4
    assert most == last + before


def test_generation_comes_before_every_update_and_leaves_nothing_behind(trace: Trace) -> None:
    names = [(event.name, event.update) for event in trace.events if isinstance(event, Phase)]
    assert names[:2] == [("model", 0), ("generation", 0)]
    assert names.index(("generation", 1)) == names.index(("forward", 1)) - 1
    assert sum(name == "generation" for name, _ in names) == 2


def test_fewer_written_at_once_keep_less() -> None:
    found = {}
    for written in (1, 4):
        recipe = Chart(Options(**TINY, written_at_once=written))
        model = recipe.model().eval()
        with torch.no_grad():
            found[written] = {kept[0].shape[0] for kept in recipe.rollout(model, recipe.batch(4))}
    assert found == {1: {1}, 4: {4}}

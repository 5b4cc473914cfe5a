from collections.abc import Iterable
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from shoestring.base.settings import Settings
from shoestring.hardware.targets import find
from shoestring.integrations.huggingface.cache import cache_tensors, grow_cache
from shoestring.planning.trace import Tracer
from shoestring.planning.trace.record import Alloc, Free, Phase, Trace
from shoestring.recipe.finding import load
from shoestring.recipe.generation import Step
from shoestring_recipes.chart import Chart, Options
from shoestring_recipes.chart.policy import SIZES, Batch, Policy
from shoestring_recipes.chart.rollout import simulate_generation
from shoestring_recipes.chart.writing import sample_tokens

TINY: dict[str, Any] = {"size": "tiny", "prompt_len": 40, "completion_len": 6, "weights": "fp32"}
KEY_VALUE_BYTES = 2 * 2 * 2 * 16 * 4
"""Bytes per token: keys and values of two layers with two heads of width 16, in fp32."""


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.manual_seed(0)
    policy = Chart(Options(**TINY)).model().eval()
    with torch.no_grad():
        for weights in policy.parameters():
            if weights.dim() > 1:
                weights.mul_(5)  # with initial weights, the preceding tokens hardly matter
    return policy


@pytest.fixture
def without_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sample no tokens: the keys and values between the prompt and a simulated token are never computed."""
    monkeypatch.setattr("shoestring_recipes.chart.rollout.sample_tokens", lambda _: None)


def make_batch(size: int) -> Batch:
    torch.manual_seed(1)
    batch = Chart(Options(**TINY)).batch(size)
    words = torch.randint(6, 512, batch.tokens.shape)
    tokens = torch.where(batch.tokens == SIZES["tiny"].image_token, batch.tokens, words)
    return batch._replace(tokens=tokens, patches=torch.randn_like(batch.patches))


@torch.no_grad()
def test_scores_with_cache_match_those_without(policy: Policy) -> None:
    batch = make_batch(2)
    prompt = batch.tokens.shape[1] - batch.completions.shape[1]
    cache = DynamicCache()
    logits = [policy.scores(batch, slice(0, prompt), cache)]
    logits += [policy.scores(batch, slice(index, index + 1), cache) for index in range(prompt, prompt + 5)]
    log_probabilities = (
        torch.cat(logits, dim=1).log_softmax(dim=-1).gather(-1, batch.tokens[:, prompt:, None]).squeeze(-1)
    )
    torch.testing.assert_close(log_probabilities, policy(batch), rtol=1e-4, atol=1e-4)


def count_steps(steps: Iterable[Step]) -> list[tuple[int, int, float]]:
    """Return the texts, the positions of the cache, and how often each step runs."""
    return [(state[0].shape[0], state[0].shape[2], times) for state, times in steps]


@torch.no_grad()
@pytest.mark.usefixtures("without_sampling")
@pytest.mark.parametrize(("completion_len", "times"), [(1, [2]), (2, [2, 2]), (3, [2, 4, 0]), (6, [2, 10, 0])], ids=str)
def test_steps_stand_for_all_tokens_of_all_groups(policy: Policy, completion_len: int, times: list[float]) -> None:
    batch = Chart(Options(**{**TINY, "completion_len": completion_len})).batch(4)
    steps = count_steps(simulate_generation(policy, batch, prompts=1, groups=2))
    assert steps == [(4, 40 + completion_len, count) for count in times]


def test_the_cache_grows_but_never_shrinks(policy: Policy) -> None:
    cache = DynamicCache()
    with torch.no_grad():
        policy.scores(make_batch(2), slice(0, 40), cache)
    grow_cache(cache, 50)
    assert {tensor.shape for tensor in cache_tensors(cache)} == {(2, 2, 50, 16)}
    grow_cache(cache, 45)
    assert {tensor.shape[2] for tensor in cache_tensors(cache)} == {50}


def test_a_token_is_sampled_by_its_probability() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([[0.0, 1.0, -100.0]], dtype=torch.float16).expand(4000, 3)
    shares = sample_tokens(logits).bincount(minlength=3) / 4000
    torch.testing.assert_close(shares, torch.tensor([1.0, torch.e, 0.0]) / (1 + torch.e), atol=0.03, rtol=0)


def test_full_model_caches_36864_bytes_per_token() -> None:
    text = SIZES["full"].config().text_config
    width = text.hidden_size // text.num_attention_heads
    assert 2 * text.num_hidden_layers * text.num_key_value_heads * width * 2 == 36_864


@pytest.fixture(scope="module")
def trace() -> Trace:
    with Tracer(load("chart", {**TINY, "completion_len": "200"})) as tracer:
        settings = Settings(micro_batch=1, precision="fp32", checkpointing="no")
        return tracer.trace(settings, accumulate=4, device=find("t4").device)


@pytest.mark.slow
def test_trace_has_the_cache_of_all_completions(trace: Trace) -> None:
    live, peak = 0, 0
    phase = ""
    for event in trace.events:
        if isinstance(event, Phase):
            phase = event.name
        elif isinstance(event, Alloc | Free) and trace.storages[event.storage].part == "KV cache":
            live += trace.storages[event.storage].bytes * (1 if isinstance(event, Alloc) else -1)
            peak = max(peak, live)
            assert phase in ("generation", "forward")
    assert live == 0
    # It has room for all 200 tokens. While the keys and values of the prompts are copied, those of a layer exist twice.
    final, prompt = 4 * 240 * KEY_VALUE_BYTES, 40 * KEY_VALUE_BYTES
    assert final <= peak <= final + prompt


@pytest.mark.slow
def test_generation_precedes_every_update(trace: Trace) -> None:
    names = [(event.name, event.update) for event in trace.events if isinstance(event, Phase)]
    assert names[:2] == [("model", 0), ("generation", 0)]
    assert names.index(("generation", 1)) == names.index(("forward", 1)) - 1
    assert sum(name == "generation" for name, _ in names) == 2


@pytest.mark.usefixtures("without_sampling")
def test_written_at_once_limits_the_cache() -> None:
    sizes = {}
    for group_size in (1, 4):
        recipe = Chart(Options(**TINY, written_at_once=group_size))
        model = recipe.model().eval()
        with torch.no_grad():
            steps = count_steps(recipe.rollout(model, recipe.batch(4)))
            sizes[group_size] = {texts for texts, _, _ in steps}, sum(times for _, _, times in steps)
    assert sizes == {1: ({1}, 4 * 6), 4: ({4}, 6)}

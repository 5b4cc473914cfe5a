"""Greedy answers: equal for one prompt and for several, whatever the model's own settings are."""

import pytest
import torch
from torch import nn

from shoestring.techniques import checkpointing
from shoestring.training.engine.precision import mixed_precision
from shoestring_recipes.finetune.generation import generate, stream
from tests.recipes.finetune.tiny_models import WORDS, llama, with_adapter

PROMPTS = [[5, 6, 7, 8, 9], [11], [12, 13, 5]]
NONE = frozenset()


def greedy(model, prompt, max_tokens):
    """Return the continuation of a prompt without any cache or padding."""
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(max_tokens):
            tokens.append(int(model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.fixture(scope="module")
def model():
    return llama().eval()


@pytest.mark.parametrize("adapted", [False, True])
def test_answers_are_the_most_likely_tokens(adapted):
    model = with_adapter(llama()).eval() if adapted else llama().eval()
    expected = [greedy(model, prompt, 8) for prompt in PROMPTS]
    assert generate(model, PROMPTS, stop_tokens=NONE, max_tokens=8, pad=0) == expected
    assert [generate(model, [prompt], stop_tokens=NONE, max_tokens=8, pad=0)[0] for prompt in PROMPTS] == expected
    assert len({tuple(tokens) for tokens in expected}) == 3
    if adapted:
        assert expected != [greedy(llama().eval(), prompt, 8) for prompt in PROMPTS]


def test_answers_end_with_the_stop_token(model):
    whole = greedy(model, PROMPTS[0], 8)
    stop = {whole[3], whole[5]}
    answers = generate(model, PROMPTS, stop_tokens=stop, max_tokens=8, pad=0)
    assert answers[0] == whole[: next(i for i, token in enumerate(whole) if token in stop) + 1]
    for answer, prompt in zip(answers, PROMPTS, strict=True):
        assert greedy(model, prompt, 8)[: len(answer)] == answer
        assert answer[-1] in stop or len(answer) == 8
    # A pad token that is also the stop token, as in many models, changes nothing.
    assert generate(model, PROMPTS, stop_tokens=stop, max_tokens=8, pad=whole[3]) == answers


def test_settings_of_the_model_are_not_used_and_kept(model):
    expected = generate(model, PROMPTS, stop_tokens=NONE, max_tokens=8, pad=0)
    own = model.generation_config
    own.update(do_sample=True, temperature=2.0, repetition_penalty=50.0, eos_token_id=expected[0][1], max_length=6)
    try:
        assert generate(model, PROMPTS, stop_tokens=NONE, max_tokens=8, pad=0) == expected
    finally:
        own.update(do_sample=None, temperature=None, repetition_penalty=None, eos_token_id=2, max_length=None)
    assert model.generation_config is own


def test_modes_are_as_before():
    model = with_adapter(llama(attention_dropout=0.9), dropout=0.9).train()
    model.get_base_model().model.layers[0].eval()
    base = model.get_base_model()
    checkpointing.apply(base, object(), "full")
    base.config.use_cache = False
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    first = generate(model, PROMPTS, stop_tokens=NONE, max_tokens=4, pad=0)
    assert "".join(stream(model, PROMPTS[0], stop_tokens=NONE, max_tokens=4, decode=letters)) == letters(first[0])
    assert generate(model, PROMPTS, stop_tokens=NONE, max_tokens=4, pad=0) == first
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert base.model.layers[0].gradient_checkpointing and base.config.use_cache is False
    assert all(weight.requires_grad for name, weight in model.named_parameters() if "lora_" in name)


def test_autocast(model):
    with mixed_precision("bf16", torch.device("cpu")).autocast():
        answers = generate(model, PROMPTS, stop_tokens=NONE, max_tokens=4, pad=0)
        assert "".join(stream(model, PROMPTS[0], stop_tokens=NONE, max_tokens=4, decode=letters)) == letters(answers[0])


def test_nothing_is_compiled_for_the_lengths_of_a_cache():
    model, shapes = llama().eval(), []

    def compiler(graph, inputs):
        shapes.append(inputs)
        return graph.forward

    expected = generate(model, PROMPTS, stop_tokens=NONE, max_tokens=4, pad=0)
    mlp: nn.Module = model.model.layers[0].mlp
    mlp.forward = torch.compile(mlp.forward, backend=compiler, dynamic=False)
    assert generate(model, PROMPTS, stop_tokens=NONE, max_tokens=4, pad=0) == expected
    assert not shapes
    with torch.no_grad():
        model(input_ids=torch.tensor([PROMPTS[0]]))
    assert shapes


def test_prompt_without_tokens_is_refused(model):
    assert generate(model, [], stop_tokens=NONE, max_tokens=4, pad=0) == []
    with pytest.raises(ValueError, match="no tokens"):
        generate(model, [[5], []], stop_tokens=NONE, max_tokens=4, pad=0)
    with pytest.raises(ValueError, match="no tokens"):
        list(stream(model, [], stop_tokens=NONE, max_tokens=4, decode=letters))


def letters(tokens):
    return "".join(chr(ord("a") + token) for token in tokens)


def test_stream_yields_each_token_up_to_the_stop_token(model):
    whole = greedy(model, PROMPTS[0], 8)
    pieces = stream(model, PROMPTS[0], stop_tokens=NONE, max_tokens=8, decode=letters)
    assert next(pieces) == letters(whole[:1]) and torch.is_grad_enabled()
    assert list(pieces)[:7] == [letters([token]) for token in whole[1:]]
    stopped = whole.index(whole[3])
    pieces = stream(model, PROMPTS[0], stop_tokens={whole[3]}, max_tokens=8, decode=letters)
    assert "".join(pieces) == letters(whole[:stopped])


def test_character_of_several_tokens_is_one_piece(model):
    whole = greedy(model, PROMPTS[0], 8)
    content = "aé→b".encode() + b"\xe2"

    def decode(tokens):
        return content[: len(tokens)].decode(errors="replace")

    pieces = list(stream(model, PROMPTS[0], stop_tokens=NONE, max_tokens=len(content), decode=decode))
    assert len(content) == len(whole)
    assert [piece for piece in pieces if piece] == ["a", "é", "→", "b", "\ufffd"]
    assert max(whole) < WORDS

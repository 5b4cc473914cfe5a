"""The loss of pairs equals the formula, with the adapter switched off as the reference."""

import math

import numpy
import pytest
import torch
from torch.nn import functional

from shoestring.base.errors import UsageError
from shoestring.integrations.huggingface import preference
from shoestring.techniques.loss import IGNORED
from shoestring_recipes.finetune.preference import (
    collate_pairs,
    combine_pairs,
    evaluate_pairs,
    largest_pairs,
    preference_loss,
)
from shoestring_recipes.finetune.samples import PairSample, Sample
from tests.recipes.finetune.tiny_models import WORDS, gemma2, llama, with_adapter


def sample(length, learned_from, seed):
    tokens = numpy.random.default_rng(seed).integers(3, WORDS, length).astype(numpy.int32)
    return Sample(tokens=tokens, loss_mask=numpy.arange(length) >= learned_from, full_length=length)


PAIRS = [
    PairSample(chosen=sample(9, 4, 0), rejected=sample(6, 4, 1)),
    PairSample(chosen=sample(5, 2, 2), rejected=sample(11, 2, 3)),
    PairSample(chosen=sample(7, 6, 4), rejected=sample(7, 3, 5)),
]


def expected_rewards(model, pairs, beta):
    """Return the rewards of both answers of each pair, one sequence after the other, from all of its logits."""

    def log_probability(answer):
        tokens = torch.from_numpy(answer.tokens).long()
        logits = model(input_ids=tokens[None]).logits[0, :-1]
        by_token = functional.log_softmax(logits, dim=-1).gather(1, tokens[1:, None])[:, 0]
        return by_token[torch.from_numpy(answer.loss_mask)[1:]].sum()

    def log_probabilities():
        return torch.stack([torch.stack([log_probability(a) for a in (p.chosen, p.rejected)]) for p in pairs])

    with torch.no_grad(), model.disable_adapter():
        reference = log_probabilities()
    return (beta * (log_probabilities() - reference)).unbind(dim=1)


def gradients(model):
    return {name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad}


@pytest.mark.parametrize("loss_chunk", [1, 5, 1000, None])
@pytest.mark.parametrize("tied", [True, False])
def test_loss_and_gradients_equal_the_formula(loss_chunk, tied):
    actual, expected = (with_adapter(llama(tie_word_embeddings=tied).double()) for _ in range(2))
    loss, count = preference_loss(actual, collate_pairs(PAIRS), beta=0.3, loss_chunk=loss_chunk)
    chosen, rejected = expected_rewards(expected, PAIRS, 0.3)
    reference = -torch.log(torch.sigmoid(chosen - rejected)).sum()
    assert count == 3
    assert loss.item() == pytest.approx(reference.item(), abs=1e-9)
    assert abs(loss.item() - 3 * math.log(2)) > 0.1  # the adapter has an effect
    (loss / count).backward()
    (reference / 3).backward()
    for name, gradient in gradients(expected).items():
        torch.testing.assert_close(gradients(actual)[name], gradient, rtol=0, atol=1e-9)
    assert any(gradient.abs().max() > 1e-3 for gradient in gradients(actual).values())


def test_model_before_training_prefers_nothing():
    model = with_adapter(llama())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.zero_()
    loss, count = preference_loss(model, collate_pairs(PAIRS), beta=0.1, loss_chunk=4)
    assert loss.item() == pytest.approx(count * math.log(2))


def test_reference_has_no_dropout_and_the_model_has(monkeypatch):
    model = with_adapter(llama(attention_dropout=0.5), dropout=0.5).train()
    calls = []
    original = preference._log_probabilities

    def recorded(*arguments):
        result = original(*arguments)
        calls.append((model.training, torch.is_grad_enabled(), result))
        return result

    monkeypatch.setattr(preference, "_log_probabilities", recorded)
    for _ in range(2):
        preference_loss(model, collate_pairs(PAIRS), beta=0.1, loss_chunk=4)
    (mode, has_gradients, first), (_, _, own), (_, _, second), (_, _, other) = calls
    assert not mode and not has_gradients and torch.equal(first, second)
    assert not torch.equal(own, other) and own.requires_grad and model.training


def test_adapter_is_on_after_an_error_in_the_reference(monkeypatch):
    model = with_adapter(llama())
    before = evaluate_pairs(model, collate_pairs(PAIRS), beta=0.1, loss_chunk=4)["chosen"]

    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(preference, "_log_probabilities", fail)
        with pytest.raises(torch.OutOfMemoryError):
            preference_loss(model, collate_pairs(PAIRS), beta=0.1, loss_chunk=4)
    assert torch.equal(evaluate_pairs(model, collate_pairs(PAIRS), beta=0.1, loss_chunk=4)["chosen"], before)
    assert all(weight.requires_grad for name, weight in model.named_parameters() if "lora_" in name)


def test_metrics_do_not_depend_on_the_batches():
    model = with_adapter(llama().double()).eval()
    whole = [evaluate_pairs(model, collate_pairs(PAIRS), beta=0.3, loss_chunk=4)]
    single = [evaluate_pairs(model, collate_pairs([pair]), beta=0.3, loss_chunk=4) for pair in PAIRS]
    chosen, rejected = expected_rewards(model, PAIRS, 0.3)
    metrics = combine_pairs(whole)
    assert metrics == pytest.approx(combine_pairs(single), abs=1e-9)
    assert metrics["preference_accuracy"] == pytest.approx((chosen > rejected).double().mean().item())
    assert metrics["reward_margin"] == pytest.approx((chosen - rejected).mean().item())
    loss, _ = preference_loss(model, collate_pairs(PAIRS), beta=0.3, loss_chunk=4)
    assert metrics["loss"] == pytest.approx(loss.item() / 3)


def test_batch_has_the_learned_tokens_at_their_own_positions():
    batch = collate_pairs(PAIRS)
    assert batch["input_ids"].shape == batch["labels"].shape == (6, 16)
    assert batch["labels"][0].tolist() == [IGNORED] * 4 + PAIRS[0].chosen.tokens[4:].tolist() + [IGNORED] * 7
    assert torch.equal(batch["input_ids"][3, :6], torch.from_numpy(PAIRS[0].rejected.tokens).long())
    assert len(batch["positions"]) == 5 + 3 + 1 + 2 + 9 + 4


def test_largest_batch_is_as_large_as_any():
    largest = largest_pairs(2, 8)
    full = collate_pairs([PairSample(chosen=sample(8, 0, i), rejected=sample(8, 0, i)) for i in range(2)])
    assert {name: tensor.shape for name, tensor in largest.items()} == {name: full[name].shape for name in full}
    assert torch.equal(largest["positions"], full["positions"])


def test_all_weights_need_an_adapter():
    with pytest.raises(UsageError, match="a second model in memory") as error:
        preference_loss(llama(), collate_pairs(PAIRS), beta=0.1, loss_chunk=4)
    assert "lora_r=16" in error.value.hint


def test_capped_logits_are_those_of_the_model():
    model = with_adapter(gemma2().double())
    loss, _ = preference_loss(model, collate_pairs(PAIRS), beta=0.3, loss_chunk=4)
    chosen, rejected = expected_rewards(model, PAIRS, 0.3)
    assert loss.item() == pytest.approx(
        -functional.logsigmoid(chosen - rejected).sum().item(), abs=1e-6
    )  # it computes norms in fp32

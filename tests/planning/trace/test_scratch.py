"""The memory that kernels have for themselves.

The bytes are those that the allocator of PyTorch 2.10 was asked for on simulated GPUs.
"""

import pytest
import torch

from shoestring.hardware.catalog import DEVICES
from shoestring.planning.estimate.kernel_buffers import buffer_bytes
from shoestring.planning.trace import attention_scratch, scratch

ATEN = torch.ops.aten
T4, L4, A100, V100 = (7, 5), (8, 9), (8, 0), (7, 0)
HALF, FULL = torch.float16, torch.float32


def meta(*shape, dtype=FULL):
    return torch.empty(shape, dtype=dtype, device="meta")


def heads(width, dtype, queries=200):
    """Two heads of one sample, with the layout that linear layers leave."""
    return meta(1, queries, 2, width, dtype=dtype).transpose(1, 2)


def allocated(steps):
    return [step for step in steps if step >= 0]


@pytest.mark.parametrize(
    ("width", "dtype", "dropout", "capability", "sizes"),
    [
        (64, HALF, 0.0, T4, [1600, 131_200]),
        (128, HALF, 0.0, T4, [1600, 262_272]),
        (256, HALF, 0.1, T4, [1600, 786_688]),
        (64, FULL, 0.0, T4, [102_400, 1600, 1600, 131_200]),
        (128, FULL, 0.0, T4, [204_800, 1600, 1600, 262_400]),
        (128, FULL, 0.0, A100, [204_800, 1600, 1600, 262_272]),
        (136, FULL, 0.0, A100, [217_600, 1600, 1600, 393_408]),
        (96, HALF, 0.0, L4, [1600, 262_272]),
        (96, HALF, 0.1, L4, [1600, 393_472]),
        (128, HALF, 0.0, L4, [1600, 393_472]),
        (128, HALF, 0.0, A100, [1600, 262_208]),
        (136, HALF, 0.0, A100, [1600, 655_552]),
        (136, HALF, 0.0, V100, [217_600, 217_600, 217_600, 1600, 1600, 655_552]),
    ],
)
def test_workspaces_of_memory_efficient_attention(width, dtype, dropout, capability, sizes):
    query = heads(width, dtype)
    before, after = attention_scratch.efficient_backward(query, query, query, dropout, capability)
    assert (before, allocated(after)) == ((), sizes)


def test_another_layout_of_the_gradient_is_copied():
    query = heads(64, HALF)
    before, _ = attention_scratch.efficient_backward(query.contiguous(), query, query, 0.0, T4)
    assert before == (2 * 200 * 64 * 2,)


def test_flash_attention_adds_in_parts_for_all_multiprocessors():
    query = meta(2, 200, 4, 64, dtype=HALF).transpose(1, 2)
    before, after, sums = attention_scratch.flash_backward(query, query, query, query)
    assert (before, after) == ((), (8192,))
    assert buffer_bytes(sums, DEVICES["l4"]) == (4_194_304,)
    # The variant that adds in any order has one part (`mha_bwd`).
    assert buffer_bytes(sums, DEVICES["l4"], deterministic=False) == (4_194_304 // 8,)


def test_flash_attention_copies_a_gradient_and_an_output_in_another_layout():
    """Those of `nn.MultiheadAttention`, in whose memory the positions come before the samples."""
    query = meta(2, 200, 4, 64, dtype=HALF).transpose(1, 2)
    by_position = meta(200, 2, 4, 64, dtype=HALF).permute(1, 2, 0, 3)
    size = 2 * 200 * 4 * 64 * 2
    assert attention_scratch.flash_backward(by_position, query, query, query)[0] == (size,)
    assert attention_scratch.flash_backward(by_position, query, query, by_position)[0] == (size, size)


def test_flash_attention_has_a_gradient_for_each_head_that_shares_keys():
    query, key = (meta(2, 197, count, 64, dtype=HALF).transpose(1, 2) for count in (4, 2))
    assert attention_scratch.flash_backward(query, query, key, query)[1] == (8192, 201_728, 201_728)


@pytest.mark.parametrize(
    ("indices", "width", "weights", "sizes"),
    [
        (3072, 64, 5000, []),
        (
            *(4000, 768, 5000),
            [32_000] * 3 + [82_943, 32_000, 8, 32_000, 1023, 32_000, 32_000, 1023, 8, 35_200, 13_516_800],
        ),
        (
            *(8192, 768, 5000),
            [65_536] * 3 + [151_039, 65_536, 8, 65_536, 1279, 40_000, 40_000, 1023, 8, 46_552, 17_875_968],
        ),
        (
            *(20_000, 128, 5000),
            [160_000] * 3 + [345_087, 160_000, 8, 160_000, 1791, 40_000, 40_000, 1023, 8, 56_000, 3_584_000],
        ),
    ],
)
def test_gradients_of_embeddings_sort_their_tokens(indices, width, weights, sizes):
    tokens = torch.empty(indices, dtype=torch.int64, device="meta")
    own = scratch.scratch(ATEN.embedding_dense_backward.default, (meta(indices, width), tokens, weights, -1, False))
    assert allocated((*own.before, *own.after)) == sizes


def test_norms_have_sums_of_chunks():
    tensors = [meta(rows, 64) for rows in (10, 1000, 3000)]
    assert scratch.scratch(ATEN._foreach_norm.Scalar, (tensors, 2)).before == (36,)


@pytest.mark.parametrize(
    ("dims", "is_contiguous", "steps"),
    [
        ([1], True, ()),
        ([1], False, (960,)),
        ([1, 2], True, (960,)),
        ([1, 2], False, (960, 960, ~0)),
        ([0, 1, 2], True, (960, 960)),
        ([0, 1, 2], False, (960, 960, ~0, 960)),
        ([], True, ()),
    ],
)
def test_a_roll_has_the_results_of_all_dimensions_but_the_last(dims, is_contiguous, steps):
    values = meta(2, 10, 12) if is_contiguous else meta(2, 12, 10).transpose(1, 2)
    assert scratch.scratch(ATEN.roll.default, (values, [1] * len(dims), dims)) == scratch.Scratch(before=steps)


def test_sums_of_masks_have_a_copy_in_8_bytes():
    mask = meta(4096, 64, dtype=torch.bool)
    assert scratch.scratch(ATEN.sum.default, (mask,)).after == (2_097_152,)
    assert scratch.scratch(ATEN.sum.default, (meta(4096, 64),)).after == ()


def test_convolution_copies_a_gradient_in_another_layout():
    values, weight = meta(32, 3, 64, 64), meta(64, 3, 16, 16)
    gradient = meta(32, 16, 64).transpose(1, 2).unflatten(2, (4, 4))
    for tensor, copies in ((gradient, (32 * 64 * 16 * 4,)), (gradient.contiguous(), ())):
        assert scratch.scratch(ATEN.convolution_backward.default, (tensor, values, weight)).before == copies


def test_indices_are_sorted_for_sums_in_a_fixed_order():
    arguments = (meta(4096, 256), [torch.empty(5000, dtype=torch.int64, device="meta")], meta(5000, 256))
    own = scratch.scratch(ATEN.index_put.default, (*arguments, True))
    assert allocated(own.after) == [40_000] * 5 + [87_039]
    assert scratch.scratch(ATEN.index_put.default, arguments).after == ()

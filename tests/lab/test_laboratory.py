"""What the other tests of this folder rely on."""

import pytest
import torch


def test_tensors_have_values_and_memory_is_the_allocators():
    numbers = torch.arange(6.0, device="cuda").reshape(2, 3)
    assert (numbers @ numbers.T).cpu().tolist() == [[5, 14], [14, 50]]
    reserved = torch.cuda.memory_reserved()
    block = torch.empty(30 * 2**20 + 1, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_reserved() - reserved == 32 * 2**20 and block.is_cuda
    assert torch.cuda.get_device_name() == "Tesla T4"


def test_an_allocation_fails_where_a_test_wants_it(failing_segments):
    with failing_segments(2) as segments:
        first = torch.empty(30 * 2**20, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(30 * 2**20, dtype=torch.uint8, device="cuda")
        second = torch.empty(30 * 2**20, dtype=torch.uint8, device="cuda")
    assert segments.requested == 3 and first.is_cuda and second.is_cuda


def test_started_processes_have_gpus_of_their_own(run_simulated):
    code = """
    import torch
    print(torch.cuda.device_count(), torch.cuda.get_device_name(), torch.ones(2, device="cuda").sum().item())
    """
    assert run_simulated(code, on="kaggle-t4x2").lines == ["2 Tesla T4 2.0"]
    assert run_simulated(code, on="l4").lines == ["1 NVIDIA L4 2.0"]


def test_lists_of_tensors_on_both_devices_are_computed_once():
    tensors = [torch.full((3,), 2.0, device=device) for device in ("cpu", "cuda")]
    torch._foreach_add_(tensors, 2.0)
    torch._foreach_mul_(tensors, 3.0)
    assert [tensor.tolist() for tensor in tensors] == [[12.0] * 3] * 2

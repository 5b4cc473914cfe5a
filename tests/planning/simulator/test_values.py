"""Values on the simulated GPU against the CPU's."""

import json

import pytest

TRAIN = """
import copy, torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
torch.set_num_threads(1)

def losses(model, batches, **options):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **options)
    result = []
    for x, y in batches:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        result.append(loss.item())
    return result
"""


def test_steps_of_adamw_have_the_bits_of_the_cpu(run_simulated):
    code = (
        TRAIN
        + """
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))
batches = [(torch.randn(64, 32), torch.randint(10, (64,))) for _ in range(20)]
device = copy.deepcopy(model).cuda()
on_cpu, on_gpu = losses(model, batches), losses(device, [(x.cuda(), y.cuda()) for x, y in batches])
print(on_cpu == on_gpu, all(torch.equal(a, b.cpu()) for a, b in zip(model.parameters(), device.parameters())))
"""
    )
    assert run_simulated(code).lines == ["True True"]


@pytest.mark.parametrize("on", ["kaggle-t4", "a100-40"])
def test_convolutional_and_recurrent_networks_have_the_values_of_the_cpu(run_simulated, on):
    code = (
        TRAIN
        + """
class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layers, self.out = kind(8, 16, 2, batch_first=True, bidirectional=True), nn.Linear(32, 4)

    def forward(self, x):
        return self.out(self.layers(x)[0][:, -1])

first = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
images = nn.Sequential(*first, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
for model, shape in ((images, (16, 3, 8, 8)), (Recurrent(nn.LSTM), (16, 5, 8)), (Recurrent(nn.GRU), (16, 5, 8))):
    batches = [(torch.randn(shape), torch.randint(4, (16,))) for _ in range(4)]
    device = copy.deepcopy(model).cuda()
    on_cpu, on_gpu = losses(model, batches), losses(device, [(x.cuda(), y.cuda()) for x, y in batches])
    print(max(abs(a - b) for a, b in zip(on_cpu, on_gpu)) < 1e-5)
"""
    )
    assert run_simulated(code, on=on).lines == ["True"] * 3


@pytest.mark.parametrize("on", ["kaggle-t4", "a100-40"])
def test_attention_and_a_language_model_have_the_values_of_the_cpu(run_simulated, on):
    code = """
    import copy, torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    torch.set_num_threads(1)
    sizes = {"vocab_size": 99, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))
    tokens = torch.randint(99, (2, 33))

    def losses(model, tokens, dtype):
        model = copy.deepcopy(model).to(tokens.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(tokens.device.type, enabled=dtype is torch.float16)
        result = []
        for _ in range(3):
            with torch.autocast(tokens.device.type, dtype=dtype or torch.float16, enabled=dtype is not None):
                loss = model(input_ids=tokens, labels=tokens).loss
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            result.append(loss.item())
        return torch.tensor(result)

    expected = losses(model, tokens, None)
    for dtype, tolerance in ((None, 1e-4), (torch.float16, 5e-3), (torch.bfloat16, 3e-2)):
        print((losses(model, tokens.cuda(), dtype) - expected).abs().max().item() < tolerance)
    """
    assert run_simulated(code, on=on).lines == ["True"] * 3


def test_scaler_sees_a_real_overflow(run_simulated):
    code = """
    import torch
    model = torch.nn.Linear(8, 1).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40)
    skipped = 0
    for _ in range(30):
        before = model.weight.clone()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.ones(4, 8, device="cuda")).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        skipped += torch.equal(before, model.weight)
    print(0 < skipped < 30, scaler.get_scale() < 2.0**40)
    """
    assert run_simulated(code).lines == ["True True"]


def test_random_numbers_follow_the_generator_of_the_device(run_simulated):
    code = """
    import torch
    torch.manual_seed(3)
    host = torch.get_rng_state()
    torch.cuda.manual_seed(1)
    state = torch.cuda.get_rng_state()
    first, mask = torch.randn(5, device="cuda"), torch.nn.functional.dropout(torch.ones(99, device="cuda"))
    torch.cuda.set_rng_state(state)
    again = torch.randn(5, device="cuda")
    print(torch.equal(first, again), not torch.equal(first, torch.randn(5, device="cuda")))
    print(torch.equal(host, torch.get_rng_state()), set(mask.tolist()) == {0.0, 2.0})
    """
    assert run_simulated(code).lines == ["True True", "True True"]


def test_large_model_is_rehearsed_in_little_host_memory(run_simulated):
    code = """
    import resource, torch
    from torch import nn
    with torch.device("cuda"):
        model = nn.Sequential(*(nn.Linear(8192, 8192, dtype=torch.bfloat16) for _ in range(40)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(2):
        loss = model(torch.randn(64, 8192, device="cuda", dtype=torch.bfloat16)).float().square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    print(torch.isfinite(loss).item(), torch.isfinite(norm).item(), torch.cuda.max_memory_allocated() > 20 * 2**30)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 * 2**20)
    """
    assert run_simulated(code, on="a100-40", values="auto").lines == ["True True True", "True"]


def test_without_values_what_the_host_reads_is_finite(run_simulated):
    code = """
    import torch
    x = torch.full((100, 100), float("nan"), device="cuda")
    print(torch.isfinite((x @ x).sum()).item(), bool((x == x).all()))
    """
    assert run_simulated(code, values="none").lines == ["True True"]


def test_masks_and_labels_that_are_large_select_the_rows_that_they_name(run_simulated):
    code = """
    import torch
    labels = torch.full((64, 2048), -100)
    labels[:, 5:50] = 1
    labels, hidden = labels.cuda(), torch.randn(64, 2048, 16, device="cuda", requires_grad=True)
    mask = labels != -100
    print(mask.sum().item(), mask.nonzero().shape[0], labels[mask].shape[0], torch.where(mask)[1].max().item())
    chosen = (2 * hidden)[mask]
    chosen.sum().backward()
    print(tuple(chosen.shape), tuple(hidden.grad.shape))
    print(torch.masked_select(hidden, mask[:, :, None]).numel())
    scattered = torch.zeros(64, 2048, device="cuda").masked_scatter(mask, (3 * hidden)[mask][:, 0])
    scattered.sum().backward()
    print(scattered.shape[1], mask.view(-1)[:60].tolist() == [5 <= place < 50 for place in range(60)])
    print(torch.ones(40, 60, 70, device="cuda", dtype=torch.bool).sum().item())
    """
    expected = ["2880 2880 2880 49", "(2880, 16) (64, 2048, 16)", "46080", "2048 True", "168000"]
    assert run_simulated(code, values="auto").lines == expected


def test_tokens_that_are_assumed_are_valid_and_end_no_text(run_simulated):
    code = """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    sizes = {"vocab_size": 40000, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
    for eos in (0, 1, 2, 39999):
        config = LlamaConfig(**sizes, num_attention_heads=2, eos_token_id=eos, bos_token_id=eos, pad_token_id=eos)
        model = LlamaForCausalLM(config).cuda()
        prompts = torch.full((3, 5), 7, device="cuda")
        print(*(model.generate(prompts, max_new_tokens=9, do_sample=sample).shape[1] for sample in (False, True)))
    scores = torch.randn(4, 9000, 3, device="cuda")
    print(scores.argmax(1).tolist() == scores.argmax(1).tolist(), scores.argmax().item(), scores.max(0)[1].max().item())
    best = torch.randn(2, 30000, device="cuda").topk(4).indices
    drawn = torch.multinomial(torch.rand(2, 30000, device="cuda"), 4)
    print(best.tolist(), drawn.tolist())
    """
    lines = run_simulated(code, values="auto").lines
    assert lines[:4] == ["14 14"] * 4
    assert lines[4] == "True 53999 3"
    assert lines[5] == " ".join(["[[14998, 14999, 15000, 15001], [15002, 15003, 15004, 15005]]"] * 2)


def test_experts_that_are_chosen_by_assumed_scores_are_all_used(run_simulated):
    code = """
    import torch
    router = torch.nn.Linear(256, 8).cuda()
    scores = router(torch.randn(100, 256, device="cuda"))
    print(torch.bincount(scores.topk(2).indices.flatten(), minlength=8).tolist())
    """
    assert run_simulated(code, values="auto").lines == ["[25, 25, 25, 25, 25, 25, 25, 25]"]


def test_read_of_an_assumed_value_is_told_at_the_line_of_the_script(run_simulated):
    code = """
    import torch
    sums = torch.randn(300, 300, device="cuda").sum(1)
    torch.save(sums, "sums.pt")
    """
    files = run_simulated(code, values="auto").records.glob("notes.*")
    notes = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert {(note["file"], note["line"]) for note in notes if note["kind"] == "read"} == {("<string>", 4)}

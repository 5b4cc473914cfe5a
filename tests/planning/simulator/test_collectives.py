"""Several processes on simulated GPUs, over NCCL."""

CODE = """
import datetime, os, torch
import torch.distributed as dist
from torch import nn

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
torch.set_num_threads(1)
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=60))
full = lambda value, *shape, **options: torch.full(shape, float(value), device="cuda", **options)
total = full(rank + 1, 4)
dist.all_reduce(total)
half = full(1.5 + rank, 3, dtype=torch.bfloat16)
dist.all_reduce(half)
largest = full(rank, 2)
dist.all_reduce(largest, op=dist.ReduceOp.MAX)
gathered = [torch.empty(2, device="cuda") for _ in range(2)]
dist.all_gather(gathered, full(rank, 2))
scattered = torch.empty(3, device="cuda")
dist.reduce_scatter_tensor(scattered, torch.arange(6.0, device="cuda"))
sent, received = full(rank, 5), torch.empty(5, device="cuda")
operations = [dist.P2POp(dist.isend, sent, 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)]
for work in dist.batch_isend_irecv(operations):
    work.wait()
answers = [total[0], half[0], largest[0], gathered[0][0], gathered[1][0], scattered[2], received[0]]
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
reference = [parameter.clone() for parameter in net.parameters()]
model = nn.parallel.DistributedDataParallel(net.cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(8, 16)
for _ in range(3):
    model(x[rank * 4 : rank * 4 + 4].cuda()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
single = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
with torch.no_grad():
    for parameter, value in zip(single.parameters(), reference):
        parameter.copy_(value)
optimizer = torch.optim.SGD(single.parameters(), 0.1)
for _ in range(3):
    single(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
difference = max((a.cpu() - b).abs().max().item() for a, b in zip(model.parameters(), single.parameters()))
lines = [None, None]
dist.all_gather_object(lines, f"{[value.item() for value in answers]} {difference < 1e-6}")
if rank == 0:
    print(*lines, sep="\\n", flush=True)
dist.destroy_process_group()
"""


def test_two_processes_over_nccl(run_simulated, tmp_path):
    (tmp_path / "ranks.py").write_text(CODE)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(tmp_path / "ranks.py")]
    lines = run_simulated(launcher, on="kaggle-t4x2").lines
    assert lines == [f"[3.0, 4.0, 1.0, 0.0, 1.0, {last}, {other}] True" for last, other in ((4.0, 1.0), (10.0, 0.0))]


def test_process_that_waits_for_a_killed_one_gets_an_error(run_simulated, tmp_path):
    (tmp_path / "ranks.py").write_text(
        """
import os, torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(1, device="cuda"))
if rank == 1:
    os.kill(os.getpid(), 9)
try:
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
except Exception as error:
    print(type(error).__name__, flush=True)
os._exit(0)
"""
    )
    # Without a launcher, which would end the process that waits.
    code = """
    import os, subprocess, sys
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29573", "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen([sys.executable, "ranks.py"], env=os.environ | variables | {"RANK": str(rank)})
        for rank in range(2)
    ]
    for rank in ranks:
        rank.wait()
    """
    result = run_simulated(code, on="kaggle-t4x2", timeout=60)
    assert "Error" in result.stdout


def test_large_objects_and_whole_numbers_are_exchanged_where_few_values_are_computed(run_simulated, tmp_path):
    (tmp_path / "ranks.py").write_text(
        """
import os, torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
objects = [None, None]
dist.all_gather_object(objects, "x" * (700_000 + rank))
numbers = torch.arange(200_000, device="cuda") + rank
gathered = [torch.empty_like(numbers) for _ in range(2)]
dist.all_gather(gathered, numbers)
if rank == 0:
    print([len(text) for text in objects], [each[-1].item() for each in gathered])
dist.destroy_process_group()
"""
    )
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(tmp_path / "ranks.py")]
    result = run_simulated(launcher, on="kaggle-t4x2", values="auto", timeout=60)
    assert result.lines == ["[700000, 700001] [199999, 200000]"]

"""PyTorch's own CUDA code on the simulated runtime and driver: devices, allocator, streams, graphs."""

import pytest

from shoestring.planning.simulator.ledger import visible_gpus


def test_device_is_that_of_the_target(run_simulated):
    code = """
    import pynvml, torch
    p = torch.cuda.get_device_properties(0)
    print(torch.cuda.device_count(), p.name, (p.major, p.minor), p.multi_processor_count, p.total_memory // 2**20)
    print(torch.cuda.is_bf16_supported(including_emulation=False))
    x = torch.zeros(10, device="cuda:1")
    free, total = torch.cuda.mem_get_info(1)
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(1)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    print(pynvml.nvmlDeviceGetName(handle), memory.used == total - free, (total - free) // 2**20)
    """
    result = run_simulated(code, on="kaggle-t4x2", values="none")
    assert result.lines == ["2 Tesla T4 (7, 5) 40 14912", "False", "Tesla T4 True 142"]


def test_visible_devices_are_renumbered(run_simulated):
    code = "import torch; print(torch.cuda.device_count()); torch.zeros(1, device='cuda:0')"
    assert run_simulated(code, on="kaggle-l4x4", CUDA_VISIBLE_DEVICES="3,1").lines == ["2"]
    assert run_simulated(code, status=1, CUDA_VISIBLE_DEVICES="").lines == ["0"]


@pytest.mark.parametrize("segments", ["", "expandable_segments:True"])
def test_allocator_runs_out_of_memory_and_recovers(run_simulated, segments):
    code = """
    import torch
    held = []
    try:
        while True:
            held.append(torch.empty(2**30, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError as error:
        print(len(held), "14.56 GiB" in str(error), torch.cuda.memory_stats()["num_ooms"])
    held.clear()
    torch.cuda.empty_cache()
    torch.empty(8 * 2**30, dtype=torch.uint8, device="cuda")
    print(torch.cuda.memory_reserved() // 2**30, torch.cuda.max_memory_allocated() // 2**30)
    """
    result = run_simulated(code, values="none", PYTORCH_CUDA_ALLOC_CONF=segments)
    assert result.lines == ["14 True 1", "8 14"]


def test_chosen_allocation_of_a_segment_fails(run_simulated):
    code = """
    import torch
    for number in range(4):
        try:
            torch.empty(30 * 2**20, dtype=torch.uint8, device="cuda"); torch.cuda.empty_cache()
            print(number, "allocated")
        except torch.cuda.OutOfMemoryError:
            print(number, "refused")
    """
    lines = run_simulated(code, values="none", fail_at=3).lines
    assert lines == ["0 allocated", "1 allocated", "2 refused", "3 allocated"]


def test_allocations_fail_from_a_chosen_one_on(run_simulated):
    code = """
    import ctypes, torch
    fail_at = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}").simulator_fail_at
    fail_at.argtypes, fail_at.restype = [ctypes.c_uint64] * 2, ctypes.c_uint64
    torch.empty(1, device="cuda"); torch.cuda.empty_cache()
    print(fail_at(2, 2))
    for number in range(4):
        try:
            torch.empty(30 * 2**20, dtype=torch.uint8, device="cuda"); torch.cuda.empty_cache()
            print(number, "allocated")
        except torch.cuda.OutOfMemoryError:
            print(number, "refused")
    print(fail_at(0, 0))
    """
    lines = run_simulated(code, values="none").lines
    assert lines == ["1", "0 allocated", "1 refused", "2 refused", "3 allocated", "4"]


def test_copies_streams_events_and_pinned_memory(run_simulated):
    code = """
    import torch
    host = torch.arange(1e6).pin_memory()
    stream = torch.cuda.Stream()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    with torch.cuda.stream(stream):
        device = host.to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(stream)
    device.record_stream(torch.cuda.current_stream())
    end.record()
    end.synchronize()
    print(host.is_pinned(), torch.equal(device.cpu(), host), start.elapsed_time(end) >= 0, stream.query())
    print(torch.equal(device.to("cuda:1").cpu(), host))
    """
    assert run_simulated(code, on="kaggle-t4x2").lines == ["True True True True", "True"]


def test_graph_replays_have_the_bits_of_eager_steps(run_simulated):
    code = """
    import copy, torch
    from torch import nn
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).cuda()
    x, y = torch.randn(8, 16).cuda(), torch.randn(8, 1).cuda()

    def train(use_graph):
        model = copy.deepcopy(net)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True, foreach=True)
        inputs, losses, loss = torch.zeros_like(x), [], torch.zeros((), device="cuda")

        def step():
            optimizer.zero_grad(set_to_none=False)
            current = (model(inputs) - y).square().mean()
            current.backward()
            optimizer.step()
            loss.copy_(current.detach())

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        if use_graph:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
        for number in range(20):
            inputs.copy_(x + 0.01 * number)
            graph.replay() if use_graph else step()
            losses.append(loss.item())
        return losses

    eager, replayed = train(False), train(True)
    print(eager == replayed, eager[-1] < eager[0])
    """
    assert run_simulated(code).lines == ["True True"]


def test_forked_child_is_refused_as_on_a_gpu_and_the_parent_goes_on(run_simulated):
    code = """
    import os, torch
    x = torch.ones(4, device="cuda")
    child = os.fork()
    if child == 0:
        try:
            torch.ones(4, device="cuda")
        except RuntimeError as error:
            print("Cannot re-initialize CUDA in forked subprocess" in str(error), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print((x + 1).sum().item())
    """
    assert run_simulated(code).lines == ["True", "8.0"]


def test_process_that_becomes_another_program_gives_back_its_memory(run_simulated, tmp_path):
    (tmp_path / "next.py").write_text(
        "import torch\nfree, total = torch.cuda.mem_get_info()\nprint((total - free) >> 20)"
    )
    code = """
    import os, sys, torch
    x = torch.empty(8 * 2**30, dtype=torch.uint8, device="cuda")
    os.execv(sys.executable, [sys.executable, "next.py"])
    """
    assert run_simulated(code, values="none").lines == ["140"]


def test_which_gpu_a_device_is_can_be_read(run_simulated):
    code = "import os, torch; torch.ones(1, device='cuda:1'); print(os.getpid())"
    result = run_simulated(code, on="kaggle-l4x4", CUDA_VISIBLE_DEVICES="3,1")
    assert visible_gpus(result.records) == {int(result.lines[0]): (3, 1)}


def test_nvidia_smi_answers_as_nvml_does(run_simulated):
    code = """
    import subprocess, sys, torch
    from shoestring.planning.simulator import nvidia_smi
    x = torch.empty(2**30, dtype=torch.uint8, device="cuda:1")
    def ask(*arguments):
        command = [sys.executable, nvidia_smi.__file__, *arguments]
        result = subprocess.run(command, capture_output=True, text=True)
        print(result.returncode, (result.stdout + result.stderr).strip())
    ask("--query-gpu=index, memory.used,gpu_serial", "--format=csv,noheader,nounits")
    ask("-i", "1", "--query-gpu=memory.total,driver_version", "--format=csv")
    ask("--query-compute-apps=used_memory", "--format=csv,noheader")
    ask("--query-gpu=speed")
    ask("dmon")
    ask("-L")
    ask("--id=7", "-L")
    ask("topo", "-m")
    """
    lines = run_simulated(code, on="kaggle-t4x2", values="none").lines
    assert lines[:2] == ["0 0, 0, [N/A]", "1, 1164, [N/A]"]
    assert lines[2] == "0 memory.total [MiB], driver_version" and lines[3].startswith("14912 MiB, ")
    assert lines[4] == "0 1164 MiB"
    assert lines[5] == '2 Field "speed" is not a valid field to query.' and lines[6].startswith("6 Option dmon")
    assert [line.partition(" (")[0] for line in lines[7:9]] == ["0 GPU 0: Tesla T4", "GPU 1: Tesla T4"]
    assert lines[9:] == ["6 No devices were found", "0 GPU0\tGPU1", "GPU0\tX\tPHB", "GPU1\tPHB\tX"]


def test_used_memory_of_another_process_counts(run_simulated, tmp_path):
    (tmp_path / "child.py").write_text(
        """
import os, torch
try:
    torch.empty(8 * 2**30, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError as error:
    print("refused", "Process" in str(error), flush=True)
os.kill(os.getpid(), 9)
"""
    )
    code = """
    import subprocess, sys, torch
    x = torch.empty(8 * 2**30, dtype=torch.uint8, device="cuda")
    subprocess.run([sys.executable, "child.py"])
    free, total = torch.cuda.mem_get_info()
    print((total - free) // 2**30)
    """
    # Of the child that was killed nothing is left.
    assert run_simulated(code, values="none").lines == ["refused True", "8"]


def test_limits_of_a_context_are_kept(run_simulated):
    code = """
    import ctypes, torch
    torch.ones(1, device="cuda")
    driver, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
    print([(driver.cuCtxGetLimit(ctypes.byref(found), limit), found.value) for limit in (0, 1, 2)])
    driver.cuCtxSetLimit(1, ctypes.c_size_t(1 << 24))
    print(driver.cuCtxGetLimit(ctypes.byref(found), 1), found.value, driver.cuCtxGetLimit(ctypes.byref(found), 99))
    """
    assert run_simulated(code).lines == ["[(0, 1024), (0, 1048576), (0, 8388608)]", "0 16777216 215"]

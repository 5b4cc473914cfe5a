"""The compiler is loaded only when it is needed; nothing else changes.

Each test has its own process, because a loaded compiler stays loaded.
"""

import subprocess
import sys

import pytest

from tests.slow import slow_except

DEFER = "from shoestring.techniques import deferred_compiler; deferred_compiler.defer_compiler()"
IS_LOADED = "'torch._dynamo.eval_frame' in sys.modules"

TRAIN = """
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.01)
for _ in range(3):
    values = torch.randn(4, 8, requires_grad=True)
    checkpoint(model, values, use_reentrant=False).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
optimizer.add_param_group({{"params": [torch.zeros(1)]}})
print(hashlib.sha256(b"".join(weight.detach().numpy().tobytes() for weight in model.parameters())).hexdigest())
"""


def run_code(*lines: str) -> list[str]:
    """Run the lines in a fresh process and return its output."""
    imports = "import hashlib, sys, torch\nfrom torch.utils.checkpoint import checkpoint"
    code = "\n".join([imports, *lines])
    process = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


@pytest.mark.parametrize("optimizer", slow_except(["AdamW", "SGD", "Adafactor"], "AdamW"))
def test_training_without_the_compiler_gives_the_same_bits(optimizer: str) -> None:
    train = TRAIN.format(optimizer=optimizer)
    weights, is_compiler_loaded = run_code(DEFER, train, f"print({IS_LOADED})")
    assert is_compiler_loaded == "False"
    assert run_code(train, f"print({IS_LOADED})") == [weights, "True"]


COMPILE = """
torch._dynamo.config.recompile_limit = 3
torch.set_deterministic_debug_mode(1)
compiled = torch.compile(lambda values: values * 2, backend="eager")
import torch._inductor.config
print(torch._inductor.config.deterministic, torch.get_deterministic_debug_mode())
print(compiled(torch.ones(1)).item(), torch._dynamo.config.recompile_limit)
print(torch._dynamo.config is sys.modules["torch._dynamo.config"], torch._dynamo is sys.modules["torch._dynamo"])
optimizer.zero_grad()
print(hasattr(vars(torch.optim.Optimizer.zero_grad.__wrapped__)["__dynamo_disable"], "_torchdynamo_disable"))
"""


def test_compilation_loads_the_compiler_for_optimizers_too() -> None:
    lines = run_code(DEFER, TRAIN.format(optimizer="AdamW"), COMPILE)
    assert lines[1:] == ["True 1", "2.0 3", "True True", "True"]


@pytest.mark.parametrize(
    "access",
    slow_except(
        [
            "import torch._dynamo.utils",
            "from torch._dynamo import allow_in_graph",
            "torch._dynamo.reset()",
            "from torch._dynamo.source import LocalSource",
            "torch._dynamo.disable(torch.nn.Linear(1, 1))",
        ],
        "from torch._dynamo import allow_in_graph",
    ),
)
def test_other_access_loads_the_compiler(access: str) -> None:
    lines = (
        "import torch._dynamo as stand_in",
        access,
        f"print({IS_LOADED}, stand_in.reset is torch._dynamo.reset)",
    )
    assert run_code(DEFER, *lines) == ["True True"]


def test_iterating_over_all_modules_loads_nothing() -> None:
    iterate = (
        "for module in list(sys.modules.values()): hasattr(module, '__file__'), hasattr(module, '__warningregistry__')"
    )
    assert run_code(DEFER, iterate, f"print({IS_LOADED})") == ["False"]


@pytest.mark.slow
def test_loaded_compiler_is_not_replaced() -> None:
    load = "import torch._dynamo; compiler = torch._dynamo"
    assert run_code(load, DEFER, "print(compiler is torch._dynamo is sys.modules['torch._dynamo'])") == ["True"]


@pytest.mark.parametrize("broken", slow_except(["raise ImportError('another layout')", None], None))
def test_compiler_is_loaded_if_its_settings_cannot_be(broken: str | None, tmp_path: str) -> None:
    """The file of settings is missing in this torch, or fails to import."""
    defer = f"""
import pathlib
from shoestring.techniques import deferred_compiler
(pathlib.Path({str(tmp_path)!r}) / "_dynamo").mkdir()
if {broken!r}:
    (pathlib.Path({str(tmp_path)!r}) / "_dynamo" / "config.py").write_text({broken!r})
file, torch.__file__ = torch.__file__, str(pathlib.Path({str(tmp_path)!r}) / "__init__.py")
deferred_compiler.defer_compiler()
torch.__file__ = file
print("torch._dynamo" in sys.modules, "torch._dynamo.config" in sys.modules)
"""
    stand_ins, weights, is_compiler_loaded = run_code(defer, TRAIN.format(optimizer="AdamW"), f"print({IS_LOADED})")
    assert (stand_ins, is_compiler_loaded) == ("False False", "True")
    assert weights == run_code(TRAIN.format(optimizer="AdamW"))[0]

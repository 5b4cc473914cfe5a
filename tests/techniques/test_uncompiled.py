"""The compiler stays away from what has no use for it, and is itself for whoever has; nothing else differs.

Each test has a process of its own: once loaded, the compiler stays.
"""

import subprocess
import sys

import pytest

SPARED = "from shoestring.techniques import uncompiled; uncompiled.spare_the_compiler()"
LOADED = "'torch._dynamo.eval_frame' in sys.modules"

TRAINED = """
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
print(hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest())
"""


def said(*lines: str) -> list[str]:
    """What a fresh process prints that runs these lines."""
    begin = "import hashlib, sys, torch\nfrom torch.utils.checkpoint import checkpoint"
    code = "\n".join([begin, *lines])
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD", "Adafactor"])
def test_training_goes_without_it_to_the_same_bits(optimizer: str) -> None:
    trained = TRAINED.format(optimizer=optimizer)
    weights, loaded = said(SPARED, trained, f"print({LOADED})")
    assert loaded == "False"
    assert said(trained, f"print({LOADED})") == [weights, "True"]


COMPILED = """
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


def test_who_compiles_has_the_compiler_and_optimizers_ask_it_again() -> None:
    lines = said(SPARED, TRAINED.format(optimizer="AdamW"), COMPILED)
    assert lines[1:] == ["True 1", "2.0 3", "True True", "True"]


@pytest.mark.parametrize(
    "asking",
    [
        "import torch._dynamo.utils",
        "from torch._dynamo import allow_in_graph",
        "torch._dynamo.reset()",
        "from torch._dynamo.source import LocalSource",
        "torch._dynamo.disable(torch.nn.Linear(1, 1))",
    ],
)
def test_any_other_question_is_for_the_compiler(asking: str) -> None:
    asked = "import torch._dynamo as before", asking, f"print({LOADED}, before.reset is torch._dynamo.reset)"
    assert said(SPARED, *asked) == ["True True"]


def test_who_looks_through_all_modules_loads_nothing() -> None:
    look = (
        "for module in list(sys.modules.values()): hasattr(module, '__file__'), hasattr(module, '__warningregistry__')"
    )
    assert said(SPARED, look, f"print({LOADED})") == ["False"]


def test_a_compiler_that_is_there_stays() -> None:
    there = "import torch._dynamo; before = torch._dynamo"
    assert said(there, SPARED, "print(before is torch._dynamo is sys.modules['torch._dynamo'])") == ["True"]


@pytest.mark.parametrize("broken", ["raise ImportError('another layout')", None])
def test_where_its_settings_are_not_to_be_had_alone_it_is_loaded_as_before(broken: str | None, tmp_path: str) -> None:
    """A torch whose file of settings is elsewhere, or needs more."""
    lacking = f"""
import pathlib
from shoestring.techniques import uncompiled
(pathlib.Path({str(tmp_path)!r}) / "_dynamo").mkdir()
if {broken!r}:
    (pathlib.Path({str(tmp_path)!r}) / "_dynamo" / "config.py").write_text({broken!r})
file, torch.__file__ = torch.__file__, str(pathlib.Path({str(tmp_path)!r}) / "__init__.py")
uncompiled.spare_the_compiler()
torch.__file__ = file
print("torch._dynamo" in sys.modules, "torch._dynamo.config" in sys.modules)
"""
    first, weights, loaded = said(lacking, TRAINED.format(optimizer="AdamW"), f"print({LOADED})")
    assert (first, loaded) == ("False False", "True")
    assert weights == said(TRAINED.format(optimizer="AdamW"))[0]

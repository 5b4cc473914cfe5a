"""A trace is the same with and without torch's compiler."""

import json
import subprocess
import sys

import pytest

from shoestring.techniques import deferred_compiler

TRACING_SCRIPT = """
import json, sys, torch
from shoestring.base.settings import Settings
from shoestring.techniques import deferred_compiler
from shoestring.planning.trace import child
if not {spared}:
    deferred_compiler.defer_compiler = lambda: None
handler = child._RequestHandler(None)
options = {{"size": "tiny", "architecture": "transformer"}}
handler.answer({{"do": "open", "reference": "temporal", "options": options}})
request = {{"do": "trace", "accumulate": 2, "capability": (7, 5), "gpus": 1, "torch_ddp": False, "options": {{}}}}
request["loading"] = "engine"
process_bytes = []
for compiled in ("no", "yes"):
    settings = Settings(micro_batch=8, precision="fp16", checkpointing="full", compile=compiled)
    trace = handler.answer({{**request, "settings": settings.json()}})["trace"]
    process_bytes.append(trace["facts"].pop("process_bytes"))
print(json.dumps([trace, "torch._dynamo.eval_frame" in sys.modules, process_bytes[1] - process_bytes[0]]))
"""


@pytest.mark.slow
def test_trace_is_the_same_without_the_compiler() -> None:
    outputs = []
    for spared in (True, False):
        code = TRACING_SCRIPT.format(spared=spared)
        process = subprocess.run([sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, check=True)
        outputs.append(json.loads(process.stdout))
    assert outputs[0][0]["events"] and outputs[0][0] == outputs[1][0]
    # If the compiler was not loaded, its memory is added for settings that use it.
    assert [output[1:] for output in outputs] == [[False, deferred_compiler.BYTES], [True, 0]]

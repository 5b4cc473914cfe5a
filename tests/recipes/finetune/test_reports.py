"""Public reports about the data of fine-tuning in other tools, tried with small inputs.

`docs/explanation/reports.md` has the table: what was reported, where, and what happens here.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from shoestring.base.errors import DataError
from shoestring_recipes.finetune.data import read_parts
from shoestring_recipes.finetune.inspection import inspect
from shoestring_recipes.finetune.rendering import Renderer
from shoestring_recipes.finetune.template_notes import template_notes
from tests.recipes.finetune.test_rendering import learned_texts
from tests.recipes.finetune.tokenizers import CHATML, CHATML_TOKENS, make_tokenizer, tokenizer_for, trl_templates

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "reports.md"
TEMPLATES = trl_templates()

ASK = {"role": "user", "content": "What is two plus two?"}
ANSWER = {"role": "assistant", "content": "It is four."}
MORE = {"role": "user", "content": "Hello, hello!"}
LAST = {"role": "assistant", "content": "That is all."}
HUMAN, GPT = {"from": "human", "value": "What?"}, {"from": "gpt", "value": "It is four."}
CALL = {"from": "function_call", "value": json.dumps({"name": "area", "arguments": {"sides": [5, 3]}})}
SEEN = {"from": "observation", "value": '{"area": 15}'}
TOOL = {"name": "area", "description": "", "parameters": {"type": "object", "properties": {
    "sides": {"type": "array", "description": "", "items": {"type": "number"}}}}}  # fmt: skip
ALTERNATING = (
    "{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% endfor %}" + CHATML
)


@dataclass(kw_only=True)
class Outcome:
    """What is learned of each row, or why the data is refused."""

    learned: list[list[str]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    notes: str = ""
    refused: str = ""


def examine(
    path: Path,
    rows: Sequence[dict[str, Any]],
    *,
    template: str = CHATML,
    seq_len: int = 4096,
    method: str = "sft",
    columns: str | None = None,
    on_bad_rows: Any = "refuse",
    **tokenizer: Any,
) -> Outcome:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    built = make_tokenizer(template, **tokenizer) if "<|im_start|>" in template else tokenizer_for(template)
    renderer = Renderer(built, seq_len=seq_len, as_chat=True)
    try:
        parts = read_parts(
            path,
            columns=columns,
            method=method,
            on_bad_rows=on_bad_rows,
            validation=0,
            seed=0,
            describe=renderer.describe_turns,
        )
        samples: Any = (
            renderer.render_pairs(parts.train) if method == "dpo" else renderer.render_all(parts.train)  # type: ignore[arg-type]
        )
    except DataError as error:
        return Outcome(refused="\n".join([error.message, *error.problems, str(error.hint)]))
    inspection = inspect(samples, renderer, parts.train)
    flat = [part for sample in samples for part in ((sample.chosen, sample.rejected) if method == "dpo" else (sample,))]
    return Outcome(
        learned=[learned_texts(renderer, part) for part in flat],
        texts=[renderer.decode(part.tokens, skip_special=False) for part in flat],
        notes="\n".join([*template_notes(parts.train, renderer), *parts.notes, *inspection.notes]),
        refused="\n".join(inspection.refusals),
    )


def chat(*messages: dict[str, Any], **columns: Any) -> dict[str, Any]:
    return {"messages": list(messages), **columns}


def sharegpt(*messages: dict[str, Any], **columns: Any) -> dict[str, Any]:
    return {"conversations": list(messages), **columns}


def calling(arguments: object, content: str = "") -> dict[str, Any]:
    function = {"name": "area", "arguments": arguments}
    return {"role": "assistant", "content": content, "tool_calls": [{"type": "function", "function": function}]}


@dataclass(frozen=True, kw_only=True)
class Report:
    """A public report, an input of its kind, and what must happen."""

    where: str
    rows: list[dict[str, Any]]
    holds: Callable[[Outcome], bool]
    options: dict[str, Any] = field(default_factory=dict)
    suffix: str = ".jsonl"


BOTH = ["It is four.<|im_end|>", "That is all.<|im_end|>"]

REPORTS = [
    Report(
        where="axolotl-ai-cloud/axolotl#1702",
        rows=[chat(ASK, {**ANSWER, "weight": 0}, MORE, LAST)],
        holds=lambda outcome: outcome.learned == [BOTH[1:]] and "not learned: weight 0" in outcome.notes,
    ),
    Report(
        where="axolotl-ai-cloud/axolotl#1756",
        rows=[chat(ASK, {**ANSWER, "train_detail": [{"begin_offset": 0, "end_offset": 1, "train": True}]}, MORE, LAST)],
        holds=lambda outcome: outcome.learned == [["It", "<|im_end|>", BOTH[1]]],
    ),
    Report(
        where="axolotl-ai-cloud/axolotl#1761",
        rows=[chat({"role": "system", "content": "s"}, ASK, ANSWER, MORE, LAST)],
        holds=lambda outcome: outcome.learned == [BOTH],
    ),
    Report(
        where="axolotl-ai-cloud/axolotl#3231",
        rows=[chat(ASK, ANSWER, MORE), chat(ASK, ANSWER)],
        holds=lambda outcome: "line 1: the conversation ends with the user" in outcome.refused,
    ),
    Report(
        where="axolotl-ai-cloud/axolotl#325",
        rows=[sharegpt(HUMAN, {"from": "bing", "value": "Hello"}), sharegpt(HUMAN, GPT)],
        holds=lambda outcome: "line 1: message 2 of conversations has the unknown role 'bing'" in outcome.refused,
    ),
    Report(
        where="axolotl-ai-cloud/axolotl#603",
        rows=[sharegpt(HUMAN, {"from": "gpt", "value": ""}), sharegpt(HUMAN, GPT)],
        options={"on_bad_rows": "skip"},
        holds=lambda outcome: (
            outcome.learned == [BOTH[:1]] and "message 2 of conversations (assistant) is empty" in outcome.notes
        ),
    ),
    Report(
        where="axolotl-ai-cloud/axolotl#1645",
        rows=[{"chosen": [ASK, ANSWER, MORE, LAST], "rejected": [ASK, ANSWER, MORE, ANSWER]}],
        options={"method": "dpo"},
        holds=lambda outcome: (
            outcome.learned == [BOTH[1:], BOTH[:1]] and all("two plus two" in text for text in outcome.texts)
        ),
    ),
    Report(
        where="axolotl-ai-cloud/axolotl#3538",
        rows=[
            {
                "prompt": [ASK, calling({}), {"role": "tool", "content": "4"}],
                "chosen": [ANSWER],
                "rejected": [LAST],
                "tools": [TOOL],
            }
        ],
        options={"method": "dpo", "template": TEMPLATES.get("qwen2_5", "")},
        holds=lambda outcome: outcome.learned == [[text] for text in BOTH] and "<tool_response>\n4" in outcome.texts[0],
    ),
    Report(
        where="hiyouga/LlamaFactory#4683",
        rows=[{"instruction": "What?", "output": "That is all.", "history": [["Hello", "It is four."]]}],
        holds=lambda outcome: outcome.learned == [BOTH] and "with a column history" in outcome.notes,
    ),
    Report(
        where="hiyouga/LlamaFactory#8986",
        rows=[chat(ASK, ANSWER, history=[["a", "b"]])],
        holds=lambda outcome: "columns that are not used: history (1 row)" in outcome.notes,
    ),
    Report(
        where="hiyouga/LlamaFactory#2464",
        rows=[sharegpt({"from": "system", "value": "Be brief."}, HUMAN, GPT)],
        holds=lambda outcome: outcome.texts[0].startswith("<|im_start|>system\nBe brief.<|im_end|>"),
    ),
    Report(
        where="hiyouga/LlamaFactory#4187",
        rows=[sharegpt(HUMAN, CALL, SEEN, GPT, system="Be brief.", tools=json.dumps([TOOL]))],
        options={"template": TEMPLATES.get("qwen2_5", "")},
        holds=lambda outcome: (
            "Be brief." in outcome.texts[0] and '{"type": "function", "function": {"name": "area"' in outcome.texts[0]
        ),
    ),
    Report(
        where="hiyouga/LlamaFactory#2529",
        rows=[sharegpt(HUMAN, CALL, SEEN, GPT, tools=json.dumps([TOOL]))],
        options={"template": TEMPLATES.get("qwen2_5", "")},
        holds=lambda outcome: (
            '"arguments": {"sides": [5, 3]}}' in outcome.learned[0][0] and len(outcome.learned[0]) == 2
        ),
    ),
    Report(
        where="hiyouga/LlamaFactory#4729",
        rows=[sharegpt(HUMAN, CALL, SEEN, GPT, HUMAN, CALL, SEEN, GPT, tools=json.dumps([TOOL]))],
        options={"template": TEMPLATES.get("qwen2_5", "")},
        holds=lambda outcome: len(outcome.learned[0]) == 4 and outcome.texts[0].count('{"area": 15}') == 2,
    ),
    Report(
        where="hiyouga/LlamaFactory#9107",
        rows=[chat(ASK, calling({"sides": [2]}, "Let me see."), {"role": "tool", "content": "4"}, ANSWER)],
        options={"template": TEMPLATES.get("qwen2_5", "")},
        holds=lambda outcome: "Let me see." in outcome.learned[0][0] and '"sides": [2]' in outcome.learned[0][0],
    ),
    Report(
        where="hiyouga/LlamaFactory#7547",
        rows=[chat(ASK, ANSWER, tools=" "), chat(ASK, ANSWER, tools="[{")],
        options={"on_bad_rows": "skip"},
        holds=lambda outcome: (
            outcome.learned == [BOTH[:1]] and "line 2: tools is a text that is not valid JSON" in outcome.notes
        ),
    ),
    Report(
        where="huggingface/trl#3927",
        rows=[chat({"role": "user", "content": "hello! " * 60}, ANSWER), chat(ASK, ANSWER)],
        options={"seq_len": 40},
        holds=lambda outcome: "Training leaves out 1 of 2 rows, in which nothing is learned." in outcome.notes,
    ),
    Report(
        where="huggingface/trl#6668",
        rows=[{"prompt": "hello! " * 60, "completion": "It is four."}],
        options={"seq_len": 40},
        holds=lambda outcome: "nothing is left to learn" in outcome.refused,
    ),
    Report(
        where="huggingface/trl#1858",
        rows=[{"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"}],
        options={"method": "dpo"},
        holds=lambda outcome: "has no prompt, and chosen and rejected are no conversations" in outcome.refused,
    ),
    Report(
        where="huggingface/trl#1623",
        rows=[{"text": "It is four."}],
        holds=lambda outcome: (
            outcome.texts == ["It is four.<|im_end|>"] and outcome.learned[0][0].endswith("<|im_end|>")
        ),
    ),
    Report(
        where="huggingface/trl#5118",
        rows=[
            chat(
                ASK,
                ANSWER,
                tools=[
                    {
                        "type": "function",
                        "function": {"name": name, "parameters": {"properties": {name: {"type": "string"}}}},
                    }
                ],
            )
            for name in ("a", "b")
        ],
        options={"template": TEMPLATES.get("qwen2_5", "")},
        suffix=".parquet",
        holds=lambda outcome: (
            "null" not in outcome.texts[0] and '{"properties": {"a": {"type": "string"}}}' in outcome.texts[0]
        ),
    ),
    Report(
        where="huggingface/transformers#44301",
        rows=[chat(ASK, {**ANSWER, "thinking": "two and two"})],
        options={"template": TEMPLATES.get("qwen2_5", "")},
        holds=lambda outcome: "chat template does not use, with the number of messages: thinking (1)" in outcome.notes,
    ),
    Report(
        where="huggingface/transformers#45419",
        rows=[chat(ASK, calling('{"sides": [2]}'), {"role": "tool", "content": "4"}, ANSWER)],
        options={"template": TEMPLATES.get("glm4moe", "")},
        holds=lambda outcome: "<arg_value>[2]</arg_value>" in outcome.texts[0] and "arguments as text" in outcome.notes,
    ),
    Report(
        where="modelscope/ms-swift#4939",
        rows=[chat(ASK, {**ANSWER, "content": "<think>\nhm\n</think>\n\nIt is four."}, MORE, LAST)],
        options={"template": TEMPLATES.get("qwen3", "")},
        holds=lambda outcome: "the chat template changes its own prefix in 1 of 1 rows" in outcome.refused,
    ),
    Report(
        where="unslothai/unsloth#2095",
        rows=[chat(ASK, ANSWER, MORE, LAST)],
        options={"template": TEMPLATES.get("llama3_1", "")},
        holds=lambda outcome: outcome.learned == [["It is four.<|eot_id|>", "That is all.<|eot_id|>"]],
    ),
    Report(
        where="unslothai/unsloth#334",
        rows=[chat(ASK, MORE, ANSWER)],
        options={"template": ALTERNATING},
        holds=lambda outcome: (
            "messages 1 and 2 are both of the user" in outcome.refused
            and "rejects them: Conversation roles" in outcome.refused
        ),
    ),
    Report(
        where="unslothai/unsloth#416",
        rows=[chat(ASK, ANSWER)],
        options={"pad": "<|im_end|>"},
        holds=lambda outcome: outcome.learned == [BOTH[:1]],
    ),
    Report(
        where="OpenRLHF/OpenRLHF#393",
        rows=[chat(ASK, ANSWER)],
        options={
            "template": "{{ bos_token }}" + CHATML,
            "special": (*CHATML_TOKENS, "<s>"),
            "bos": "<s>",
            "adds_bos": True,
        },
        holds=lambda outcome: outcome.texts[0].count("<s>") == 1,
    ),
    Report(
        where="verl-project/verl#5316",
        rows=[chat(ASK, {**ANSWER, "loss_mask": 0, "trainable": False}, MORE, LAST)],
        holds=lambda outcome: outcome.learned == [BOTH[1:]] and "trainable (1)" in outcome.notes,
    ),
    Report(
        where="NovaSky-AI/SkyRL#1675",
        rows=[chat(ASK, {**ANSWER, "content": None, "tool_calls": json.dumps(calling({"sides": [2]})["tool_calls"])})],
        options={"template": TEMPLATES.get("qwen2_5", "")},
        holds=lambda outcome: '"arguments": {"sides": [2]}}' in outcome.learned[0][0],
    ),
    Report(
        where="AI-Hypercomputer/maxtext#3559",
        rows=[
            {
                "messages": json.dumps([ASK, calling("{}"), {"role": "tool", "content": "4"}, ANSWER]),
                "tools": json.dumps([TOOL]),
            }
        ],
        options={"template": TEMPLATES.get("qwen2_5", "")},
        suffix=".parquet",
        holds=lambda outcome: len(outcome.learned[0]) == 2 and '"arguments": {}' in outcome.learned[0][0],
    ),
    Report(
        where="camel-ai/owl#592",
        rows=[{"prompt": "a", "chosen": "b", "rejected": "b"}, {"prompt": "a", "chosen": "b", "rejected": "c"}],
        options={"method": "dpo"},
        holds=lambda outcome: "line 1: chosen and rejected are equal" in outcome.refused,
    ),
]


@pytest.mark.parametrize("report", REPORTS, ids=[report.where for report in REPORTS])
def test_what_is_reported_elsewhere(tmp_path: Path, report: Report) -> None:
    if report.options.get("template") == "":
        pytest.skip("this release of TRL has not the template")
    outcome = examine(tmp_path / f"a{report.suffix}", report.rows, **report.options)
    assert report.holds(outcome), outcome


def test_the_page_lists_these_reports() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [report.where for report in REPORTS if f"[{report.where}]" not in page] == []

"""A chat template that loops, or is slow, is stopped instead of being waited for."""

import gc
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from shoestring_recipes import template_limits
from shoestring_recipes.chart.processing import encode_prompts
from shoestring_recipes.finetune.rendering import Renderer
from shoestring_recipes.finetune.rows import Conversation
from shoestring_recipes.template_limits import TemplateLimitError, limited, require_fast
from tests.recipes.finetune.tokenizers import CHATML, make_tokenizer

ASK = {"role": "user", "content": "loop"}
ANSWER = {"role": "assistant", "content": "It is four."}
_LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
def no_callbacks() -> Iterator[None]:
    """Without callbacks of the garbage collector, such as Hypothesis': an error within one of them is only printed."""
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = callbacks


@pytest.mark.usefixtures("no_callbacks")
@pytest.mark.parametrize("condition", ["true", "message['content'] == 'loop'"], ids=["always", "in a row"])
def test_a_template_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch, condition: str) -> None:
    monkeypatch.setattr(template_limits, "ROW_SECONDS", 0.1)
    template = CHATML.replace("{% for", "{% for", 1).replace(
        "<|im_start|>{{ message", "{% if " + condition + " %}" + _LOOP + "{% endif %}<|im_start|>{{ message", 1
    )
    start = time.process_time()
    with pytest.raises(TemplateLimitError, match=r"the chat template did not end after 0\.1 s") as caught:
        Renderer(make_tokenizer(template), seq_len=100).render_all(
            [Conversation(place="", messages=(ASK, ANSWER))] * 50
        )
    assert "template=FILE" in str(caught.value.hint)
    assert time.process_time() - start < 5


def test_a_template_that_writes_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MOST_CHARACTERS", 1000)
    template = CHATML.replace("{% for", "{{ 'x' * 2000 }}{% for", 1)
    with pytest.raises(TemplateLimitError, match=r"wrote 2,\d+ characters for one text; at most 1,000"):
        Renderer(make_tokenizer(template), seq_len=100).render_all([Conversation(place="", messages=(ASK, ANSWER))])


@pytest.mark.parametrize("template", [_LOOP, "{{ 'x' * 2000 }}"], ids=["loop", "output"])
def test_prompts_about_charts_have_the_limits(monkeypatch: pytest.MonkeyPatch, template: str) -> None:
    monkeypatch.setattr(template_limits, "ROW_SECONDS", 0.1)
    monkeypatch.setattr(template_limits, "MOST_CHARACTERS", 1000)
    tokenizer = make_tokenizer(template)
    processor = SimpleNamespace(
        apply_chat_template=lambda conversation, **options: tokenizer.apply_chat_template(conversation, **options)
    )
    with pytest.raises(TemplateLimitError):
        encode_prompts(processor, [[ASK]])


def test_a_slow_template_is_refused_with_its_time() -> None:
    require_fast(59, 1, 10_000)
    require_fast(61, 100_000, 1_000_000)
    with pytest.raises(TemplateLimitError, match=r"is slow: 0\.62 s for a row, 1\.7 h for all 10,000"):
        require_fast(62, 100, 10_000)


def test_other_threads_have_no_limit() -> None:
    results: list[Any] = []

    def work() -> None:
        with limited():
            results.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [1]

"""A chat template that loops, or is slow, is stopped instead of being waited for."""

import threading
import time
from typing import Any

import pytest

from shoestring_recipes.finetune import limits
from shoestring_recipes.finetune.limits import TemplateLimitError, limited, require_fast
from shoestring_recipes.finetune.rendering import Renderer
from shoestring_recipes.finetune.rows import Conversation
from tests.recipes.finetune.tokenizers import CHATML, make_tokenizer

ASK = {"role": "user", "content": "loop"}
ANSWER = {"role": "assistant", "content": "It is four."}
_LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("condition", ["true", "message['content'] == 'loop'"], ids=["always", "in a row"])
def test_a_template_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch, condition: str) -> None:
    monkeypatch.setattr(limits, "ROW_SECONDS", 0.1)
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

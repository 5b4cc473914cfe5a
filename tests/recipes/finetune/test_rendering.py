"""Which tokens are learned, for each chat template: by exact text, and as transformers marks them."""

import itertools
from typing import Any

import pytest
import tokenizers

from shoestring.base.errors import DataError, UsageError
from shoestring_recipes.finetune.rendering import Renderer
from shoestring_recipes.finetune.rows import Completion, Conversation, Message, Pair, Text
from shoestring_recipes.finetune.samples import Sample
from tests.recipes.finetune.tokenizers import (
    CHATML,
    CHATML_MARKED,
    CHATML_TOKENS,
    make_tokenizer,
    tokenizer_for,
    trl_templates,
)

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "What is two plus two?"}
ANSWER = {"role": "assistant", "content": "It is four."}
GREETING = {"role": "user", "content": "Hello, hello!"}
FAREWELL = {"role": "assistant", "content": "That is all."}
CHAT = (SYSTEM, QUESTION, ANSWER, GREETING, FAREWELL)

TEMPLATES = trl_templates()

MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + (system if loop.last and system is defined else '') + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
)

PHI4 = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}"
)

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# As those of TRL 1.16, without its tools; TRL 1.10 has neither.
DEEPSEEK_R1 = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}"  # noqa: RUF001
    "{% else %}{% generation %}{{ '<｜Assistant｜>' + message['content'] + '<｜end▁of▁sentence｜>' }}"  # noqa: RUF001
    "{% endgeneration %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}"  # noqa: RUF001
)
SMOLVLM = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)

STOPS_OF_TRL = {
    "cohere": "<|END_OF_TURN_TOKEN|>",
    "cohere2": "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>",
    "gemma3": "<end_of_turn>",
    "gemma4": "<turn|>",
    "lfm2": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "llama3_1": "<|eot_id|>",
    "llama3_2": "<|eot_id|>",
    "qwen2_5": "<|im_end|>",
    "qwen3_instruct_2507": "<|im_end|>",
}
"""What ends each answer, of templates that write nothing else around it."""

CHANGED = {
    "deepseek_r1_distill",
    "deepseek_r1_distill_training",
    "deepseekv3",
    "deepseekv3_training",
    "nemotron_3_5_lightning",
    "nemotron_3_5_lightning_training",
    "nemotron_3_nano",
    "nemotron_3_nano_training",
    "nemotron_3_super",
    "nemotron_3_super_training",
    "nemotron_3_ultra",
    "nemotron_3_ultra_training",
    "qwen3",
    "qwen3_5_nothink",
    "qwen3_5_think",
    "qwen3_6",
}
"""Templates of TRL that write something else where a model is asked than in a conversation of plain answers."""

ALIKE = [name for name in TEMPLATES if f"{name}_training" in TEMPLATES and name not in {*CHANGED, "glm4moe"}]
"""Templates of which TRL's variant for training differs in marks alone."""


def learned_texts(renderer: Renderer, sample: Sample) -> list[str]:
    """Return the text of each run of learned tokens."""
    runs = itertools.groupby(range(len(sample)), key=lambda place: bool(sample.loss_mask[place]))
    return [renderer.decode(sample.tokens[list(places)], skip_special=False) for loss_mask, places in runs if loss_mask]


def conversation(*messages: Message) -> Conversation:
    return Conversation(place="chats.jsonl, line 1", messages=messages)


def learn(tokenizer: Any, *messages: Message, **arguments: Any) -> list[str]:
    renderer = Renderer(tokenizer, **{"seq_len": 4096, **arguments})
    return learned_texts(renderer, renderer.render(conversation(*messages)))


def parts(message: Message) -> Message:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def chat_for(name: str) -> tuple[Message, ...]:
    """Return the conversation in the form that a template needs: without system, or with contents as parts."""
    messages = CHAT[1:] if name in ("gemma", "gemma_training") else CHAT
    vision = name.startswith(("idefics", "llava", "smolvlm"))
    return tuple(map(parts, messages)) if vision else messages


@pytest.mark.parametrize(
    ("template", "eos", "loss_mask"),
    [
        (CHATML, "<|im_end|>", ["It is four.<|im_end|>", "That is all.<|im_end|>"]),
        (CHATML_MARKED, "<|im_end|>", ["It is four.<|im_end|>", "That is all.<|im_end|>"]),
        (SMOLLM2, "<|im_end|>", ["It is four.<|im_end|>", "That is all.<|im_end|>"]),
        (MISTRAL, "</s>", [" It is four.</s>", " That is all.</s>"]),
        (PHI4, "<|endoftext|>", ["It is four.<|end|>", "That is all.<|end|><|endoftext|>"]),
    ],
    ids=["chatml", "chatml with marks", "smollm2", "mistral", "phi4"],
)
def test_the_answers_and_their_stop_tokens_are_learned(template: str, eos: str, loss_mask: list[str]) -> None:
    tokens = (*CHATML_TOKENS, "<s>", "</s>", "[INST]", "[/INST]", "<|user|>", "<|system|>", "<|assistant|>", "<|end|>")
    tokenizer = make_tokenizer(template, tokens, eos=eos, bos="<s>")
    assert learn(tokenizer, *CHAT) == loss_mask
    assert learn(tokenizer, *CHAT, train_on="completion") == loss_mask[1:]
    assert tokenizer.eos_token_id in Renderer(tokenizer, seq_len=8).stop_tokens


@pytest.mark.parametrize("name", STOPS_OF_TRL)
def test_the_answers_are_learned_with_the_templates_of_trl(name: str) -> None:
    tokenizer = tokenizer_for(TEMPLATES[name])
    stop = STOPS_OF_TRL[name]
    assert learn(tokenizer, *chat_for(name)) == [f"It is four.{stop}", f"That is all.{stop}"]
    last = tokenizer.convert_tokens_to_ids(stop[stop.rindex("<") :])
    assert Renderer(tokenizer, seq_len=8).stop_tokens == {last, tokenizer.eos_token_id}


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_of_trl_is_rendered_as_transformers_does_or_refused(name: str) -> None:
    template, messages = TEMPLATES[name], list(chat_for(name))
    tokenizer = tokenizer_for(template)
    renderer = Renderer(tokenizer, seq_len=4096)
    if name in CHANGED:
        with pytest.raises(DataError, match="the chat template changes its own prefix in 1 of 1 rows") as caught:
            renderer.render(conversation(*messages))
        assert caught.value.problems[0].startswith("chats.jsonl, line 1: ")
        assert "message 3 ends with" in caught.value.problems[0]
        return
    sample = renderer.render(conversation(*messages))
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    if "strftime_now" not in template:
        assert sample.tokens.tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]
    if "generation %}" in template or "generation -%}" in template:
        marked = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        if "strftime_now" not in template:
            assert sample.loss_mask.tolist() == [bool(mark) for mark in marked["assistant_masks"]]
        assert sum(marked["assistant_masks"]) == sample.loss_mask.sum() > 0
    first, last = learned_texts(renderer, sample)
    assert "It is four." in first
    assert "That is all." in last


@pytest.mark.parametrize("name", ALIKE)
def test_marks_and_prefixes_find_the_same_answers(name: str) -> None:
    """The marks of TRL include white space after the stop token, and some of the markup before the answer."""
    both = [learn(tokenizer_for(TEMPLATES[each]), *chat_for(name)) for each in (name, f"{name}_training")]
    assert all(marked.rstrip().endswith(found) for found, marked in zip(*both, strict=True)), both


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5_nothink", "qwen3_5_think", "qwen3_6"])
def test_a_template_that_changes_its_prefix_still_serves_where_it_does_not(name: str) -> None:
    tokenizer = tokenizer_for(TEMPLATES[name])
    for text in (learn(tokenizer, SYSTEM, QUESTION, ANSWER), learn(tokenizer, *CHAT[:3], train_on="completion")):
        assert len(text) == 1
        assert text[0].endswith("It is four.<|im_end|>")
    assert learn(tokenizer, *CHAT, train_on="completion")[0].endswith("That is all.<|im_end|>")


def test_a_changed_prefix_is_refused_with_the_place_of_the_difference() -> None:
    with pytest.raises(DataError) as caught:
        learn(tokenizer_for(TEMPLATES["qwen3"]), *CHAT)
    assert caught.value.message == (
        "the chat template changes its own prefix in 1 of 1 rows: the model would learn to answer prompts that it "
        "never receives"
    )
    assert caught.value.problems == (
        r"chats.jsonl, line 1: message 3 ends with '<think>\n\n</think>\n\nIt is four.' after "
        r"'m_end|>\n<|im_start|>assistant\n' by itself, but 'It is four.<|im_end|>\n<|im_sta' follows in the whole "
        "conversation",
    )


def test_reasoning_makes_a_prefix_stable() -> None:
    thought = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt is four."}
    for template in {DEEPSEEK_R1, TEMPLATES.get("deepseek_r1_distill_training", DEEPSEEK_R1)}:
        tokenizer = tokenizer_for(template)
        with pytest.raises(DataError, match="the chat template changes its own prefix"):
            learn(tokenizer, QUESTION, ANSWER)
        loss_mask = learn(tokenizer, QUESTION, thought)
        assert loss_mask == ["<｜Assistant｜><think>\nhm\n</think>\n\nIt is four.<｜end▁of▁sentence｜>"]  # noqa: RUF001


@pytest.mark.parametrize("template", [CHATML, CHATML_MARKED])
@pytest.mark.parametrize("content", [" It is four.", "  It is four."])
def test_white_space_is_learned_though_the_tokens_do_not_stand_for_it(template: str, content: str) -> None:
    tokenizer = make_tokenizer(template, trim=True)
    answer = {"role": "assistant", "content": content}
    loss_mask = learn(tokenizer, QUESTION, answer, GREETING, FAREWELL)
    assert loss_mask == [f"{content}<|im_end|>", "That is all.<|im_end|>"]
    renderer = Renderer(tokenizer, seq_len=4096)
    sample = renderer.render(Completion(place="", prompt="Hello. ", completion=" It is four."))
    assert learned_texts(renderer, sample) == [" It is four.<|im_end|>"]


def test_a_special_token_that_takes_white_space_is_not_learned() -> None:
    """Those of Phi-3 take the line feed, and spaces, after them."""
    from tokenizers import AddedToken

    tokenizer = make_tokenizer(PHI4, ("<|user|>", "<|end|>", "<|endoftext|>"), eos="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": [AddedToken("<|assistant|>", rstrip=True)]})
    loss_mask = learn(tokenizer, QUESTION, {"role": "assistant", "content": "  It is four."})
    assert loss_mask == ["It is four.<|end|><|endoftext|>"]


def test_the_tokens_are_those_of_the_whole_conversation() -> None:
    tokenizer = make_tokenizer()
    renderer = Renderer(tokenizer, seq_len=4096)
    answer = {"role": "assistant", "content": "\n\nThat is all."}  # its line feeds join the one of the prompt
    sample = renderer.render(conversation(QUESTION, answer))
    text = tokenizer.apply_chat_template([QUESTION, answer], tokenize=False)
    assert sample.tokens.tolist() == tokenizer(text)["input_ids"]
    assert learned_texts(renderer, sample) == ["\n\n\nThat is all.<|im_end|>"]


def test_tools_are_given_to_the_template_and_their_results_are_not_learned() -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    call = {
        "role": "assistant",
        "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}],
    }
    messages = (QUESTION, call, {"role": "tool", "content": "4"}, ANSWER)
    renderer = Renderer(tokenizer_for(TEMPLATES["qwen3_instruct_2507"]), seq_len=4096)
    sample = renderer.render(Conversation(place="", messages=messages, tools=(tool,)))
    called = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call><|im_end|>'
    assert learned_texts(renderer, sample) == [called, "It is four.<|im_end|>"]
    assert '{"type": "function", "function": {"name": "add"' in renderer.decode(sample.tokens)


def test_all_learns_every_token_but_the_first() -> None:
    renderer = Renderer(make_tokenizer(), seq_len=4096, train_on="all")
    for row in (
        conversation(*CHAT),
        Completion(place="", prompt="What? ", completion="That."),
        Text(place="", text="Hi"),
    ):
        assert renderer.render(row).loss_mask.tolist() == [False] + [True] * (len(renderer.render(row)) - 1)


@pytest.mark.parametrize("template", [CHATML, CHATML_MARKED])
def test_only_the_completion_is_learned_of_prompt_and_completion(template: str) -> None:
    renderer = Renderer(make_tokenizer(template), seq_len=4096)
    row = Completion(place="", prompt=CHAT[:4], completion=(FAREWELL, QUESTION, ANSWER))
    assert learned_texts(renderer, renderer.render(row)) == ["That is all.<|im_end|>", "It is four.<|im_end|>"]
    last = Renderer(make_tokenizer(template), seq_len=4096, train_on="completion")
    assert learned_texts(last, last.render(row)) == ["It is four.<|im_end|>"]


def test_a_text_completion_is_learned_with_the_end_token() -> None:
    renderer = Renderer(make_tokenizer(None, bos="<|im_start|>", adds_bos=True), seq_len=4096)
    sample = renderer.render(Completion(place="", prompt="What is", completion=" four.é"))
    assert renderer.decode(sample.tokens, skip_special=False) == "<|im_start|>What is four.é<|im_end|>"
    assert learned_texts(renderer, sample) == [" four.é<|im_end|>"]
    straddling = renderer.render(Completion(place="", prompt="Hell", completion="o, hello!"))
    assert learned_texts(renderer, straddling) == ["llo, hello!<|im_end|>"]  # `llo` is one token


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("Hello", "<|im_start|>Hello<|im_end|>"),
        ("Hello<|im_end|>", "<|im_start|>Hello<|im_end|>"),
        ("<|im_start|>user\nHello<|im_end|>\n", "<|im_start|>user\nHello<|im_end|>\n"),
    ],
)
def test_no_special_token_of_a_text_is_doubled(text: str, rendered: str) -> None:
    renderer = Renderer(make_tokenizer(None, bos="<|im_start|>", adds_bos=True), seq_len=4096)
    sample = renderer.render(Text(place="", text=text))
    assert renderer.decode(sample.tokens, skip_special=False) == rendered
    assert sample.loss_mask.tolist() == [False] + [True] * (len(sample) - 1)


def test_a_template_that_writes_the_first_token_is_not_given_another() -> None:
    template = "{{ bos_token }}" + CHATML
    tokenizer = make_tokenizer(template, (*CHATML_TOKENS, "<s>"), bos="<s>", adds_bos=True)
    renderer = Renderer(tokenizer, seq_len=4096)
    assert renderer.render(conversation(*CHAT)).tokens.tolist().count(tokenizer.bos_token_id) == 1
    assert renderer.prompt([QUESTION]).count(tokenizer.bos_token_id) == 1
    assert renderer.prompt_text("Hello")[0] == tokenizer.bos_token_id


def test_texts_are_written_as_messages() -> None:
    renderer = Renderer(make_tokenizer(), seq_len=4096, as_chat=True)
    texts = Completion(place="", prompt=f"{QUESTION['content']} ", completion=f" {ANSWER['content']}")
    expected = renderer.render(conversation(QUESTION, ANSWER))
    sample = renderer.render(texts)
    assert renderer.is_wrapped(texts)
    assert sample.tokens.tolist() == expected.tokens.tolist()
    assert sample.loss_mask.tolist() == expected.loss_mask.tolist()
    pair = Pair(place="", prompt=texts.prompt, chosen=texts.completion, rejected="It is five.")
    assert renderer.render_pair(pair).chosen.tokens.tolist() == expected.tokens.tolist()
    assert renderer.question("Hello?") == renderer.prompt([{"role": "user", "content": "Hello?"}])
    assert renderer.prompt_text("Hello?") != renderer.question("Hello?")


@pytest.mark.parametrize(
    ("template", "as_chat", "prompt"),
    [
        (CHATML, False, "What is two plus two?"),
        (None, True, "What is two plus two?"),
        (CHATML, True, "<|im_start|>user\nWhat is two plus two?<|im_end|>\n<|im_start|>assistant\n"),
        (CHATML, True, " "),
    ],
    ids=["as_chat=no", "no template", "has its markup", "no prompt"],
)
def test_other_texts_are_joined_as_they_are(template: str | None, as_chat: bool, prompt: str) -> None:
    renderer = Renderer(make_tokenizer(template), seq_len=4096, as_chat=as_chat)
    row = Completion(place="", prompt=prompt, completion="It is four.")
    assert not renderer.is_wrapped(row)
    text = renderer.decode(renderer.render(row).tokens, skip_special=False)
    assert text.startswith(f"{prompt}It is four.")
    assert renderer.question(prompt) == renderer.prompt_text(prompt)


def test_a_sample_is_cut_at_its_end() -> None:
    whole = Renderer(make_tokenizer(), seq_len=4096).render(conversation(*CHAT))
    sample = Renderer(make_tokenizer(), seq_len=20).render(conversation(*CHAT))
    assert (len(sample), sample.full_length) == (20, len(whole))
    assert sample.tokens.tolist() == whole.tokens[:20].tolist()
    assert sample.loss_mask.tolist() == whole.loss_mask[:20].tolist()


@pytest.mark.parametrize("train_on", ["assistant", "completion", "all"])
def test_only_the_answers_of_a_pair_are_learned(train_on: Any) -> None:
    renderer = Renderer(make_tokenizer(), seq_len=40, train_on=train_on)
    pair = renderer.render_pair(Pair(place="", prompt=(QUESTION,), chosen=(ANSWER,), rejected=(FAREWELL,)))
    assert learned_texts(renderer, pair.chosen) == ["It is four.<|im_end|>"]
    assert learned_texts(renderer, pair.rejected) == ["That is all.<|im_end|>"]
    texts = renderer.render_pair(Pair(place="", prompt="What? ", chosen="Four.", rejected="All. " * 50))
    assert learned_texts(renderer, texts.chosen) == ["Four.<|im_end|>"]
    assert (len(texts.rejected), texts.rejected.full_length > 40) == (40, True)


def test_a_prompt_is_what_an_answer_follows() -> None:
    renderer = Renderer(make_tokenizer(), seq_len=4096)
    prompt = renderer.prompt([SYSTEM, QUESTION])
    sample = renderer.render(conversation(SYSTEM, QUESTION, ANSWER))
    assert sample.tokens[: len(prompt)].tolist() == prompt
    assert sample.loss_mask.tolist().index(True) == len(prompt)
    assert renderer.decode(prompt).endswith("assistant\n")


def test_rows_that_the_template_rejects_are_listed() -> None:
    renderer = Renderer(tokenizer_for(TEMPLATES["gemma"]), seq_len=4096)
    rows = [Conversation(place=f"line {line}", messages=CHAT[line % 2 :]) for line in range(60)]
    done: list[int] = []
    with pytest.raises(DataError, match="the chat template rejects 30 of 60 rows") as caught:
        renderer.render_all(rows, done.append)
    assert done == [60]
    assert caught.value.problems[:2] == ("line 0: System role not supported", "line 2: System role not supported")
    assert caught.value.problems[-1] == "and 10 more"
    with pytest.raises(DataError, match="rejects these messages: System role not supported"):
        renderer.prompt([SYSTEM])


def test_contents_that_the_template_leaves_out_are_an_error() -> None:
    smolvlm = TEMPLATES.get("smolvlm", SMOLVLM)
    for template, answer in ((SMOLVLM, ANSWER), (smolvlm, ANSWER), (TEMPLATES["qwen3"], parts(ANSWER))):
        with pytest.raises(DataError) as caught:
            learn(tokenizer_for(template), QUESTION, answer, train_on="all")
        assert caught.value.problems == ("chats.jsonl, line 1: message 2: the template leaves out its content",)


def test_only_messages_need_a_template() -> None:
    renderer = Renderer(make_tokenizer(None), seq_len=4096)
    assert (
        len(renderer.render_all([Text(place="", text="Hello"), Completion(place="", prompt="a", completion="b")])) == 2
    )
    for use in (lambda: renderer.render(conversation(*CHAT)), lambda: renderer.prompt([QUESTION])):
        with pytest.raises(UsageError, match="the tokenizer has no chat template, which messages need"):
            use()
    other = Renderer(make_tokenizer(None), seq_len=4096, template=CHATML)
    assert learned_texts(other, other.render(conversation(QUESTION, ANSWER))) == ["It is four.<|im_end|>"]


def test_a_tokenizer_without_offsets_is_refused() -> None:
    tokenizer = make_tokenizer()
    slow = type("SlowTokenizer", (type(tokenizer),), {"is_fast": False})
    tokenizer.__class__ = slow
    with pytest.raises(UsageError, match="SlowTokenizer cannot tell which characters a token stands for"):
        Renderer(tokenizer, seq_len=8)


def test_stop_tokens_include_those_of_the_generation_configuration() -> None:
    tokenizer = make_tokenizer(eos="<|endoftext|>")
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in CHATML_TOKENS}
    stops = {ids["<|endoftext|>"], ids["<|im_end|>"]}
    assert Renderer(tokenizer, seq_len=8).stop_tokens == stops
    assert Renderer(tokenizer, seq_len=8, stop_ids=[7]).stop_tokens == {*stops, 7}


def test_truncation_and_padding_of_a_tokenizer_have_no_effect() -> None:
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=300)
    assert 20 < len(Renderer(tokenizer, seq_len=4096).render(conversation(*CHAT))) < 200


def test_the_date_is_not_that_of_the_day() -> None:
    renderer = Renderer(tokenizer_for(TEMPLATES["llama3_2"]), seq_len=4096)
    assert "Today Date: 26 Jul 2024" in renderer.decode(renderer.render(conversation(*CHAT)).tokens)


def test_an_answer_before_any_prompt_is_not_learned() -> None:
    assert learn(make_tokenizer(), ANSWER, GREETING, FAREWELL) == ["That is all.<|im_end|>"]


def test_a_tokenizer_without_tokens_is_refused() -> None:
    """transformers makes an empty one for a folder with a configuration alone."""
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.normalizer = tokenizers.normalizers.Replace("a", "")
    with pytest.raises(UsageError, match='the tokenizer has no tokens for the text "a"'):
        Renderer(tokenizer, seq_len=4096)

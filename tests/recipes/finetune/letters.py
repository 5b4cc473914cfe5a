"""A renderer of messages whose tokens are letters, so that expected tokens can be read."""

STOP, USER, ASSISTANT = 2, 3, 4
FIRST = 10
"""The token of `a`."""


class Letters:
    stop_tokens = frozenset({STOP})

    def prompt(self, messages, tools):
        tokens = [1] * len(tools or ())
        for message in messages:
            role = USER if message["role"] == "user" else ASSISTANT
            tokens += [role, *self.prompt_text(message["content"]), STOP]
        return [*tokens, ASSISTANT]

    def prompt_text(self, text):
        return [FIRST + ord(letter) - ord("a") for letter in text]

    question = prompt_text

    def decode(self, tokens):
        return "".join(chr(ord("a") + token - FIRST) for token in tokens)

"""The model's own tokenizer and chat template, from its Hugging Face folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from saocli.errors import ConfigError
from saocli.gateway.deps import CodecError
from saocli.types import Message

REPLACEMENT = "\ufffd"
MAX_PENDING = 8  # tokens; a character is at most four bytes, so more pending ones are no text at all


class HFCodec:
    """`ChatCodec` over `transformers`, which is imported when one is made.

    tokenizer.json is taken as it stands. AutoTokenizer comes to the same for the families that train, and loads torch
    to pick a class: 1.7 s and 235 MiB that the gateway has no use for.
    """

    def __init__(self, folder: Path) -> None:
        """Load the tokenizer in `folder`. Raises ConfigError when there is none."""
        from jinja2.exceptions import TemplateError
        from transformers import PreTrainedTokenizerFast

        try:
            self._tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
            self._fast = self._tokenizer.backend_tokenizer
        except (OSError, ValueError, AttributeError) as error:
            fix = "model.path must be a Hugging Face model folder with a tokenizer.json"
            raise ConfigError(f"{folder}: no usable tokenizer ({error})", fix=fix) from error
        self._template_errors = (TemplateError, ValueError, TypeError)

    @property
    def vocab_size(self) -> int:
        return len(self._tokenizer)

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        try:
            text = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except self._template_errors as error:
            raise CodecError(str(error)) from error
        return tuple(self._fast.encode(text, add_special_tokens=False).ids)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._fast.encode(text, add_special_tokens=True).ids)

    def decoder(self) -> WindowDecoder:
        return WindowDecoder(lambda ids: str(self._fast.decode(ids, skip_special_tokens=True)))

    def token_text(self, token: int) -> str:
        return str(self._fast.decode([token], skip_special_tokens=False))


class WindowDecoder:
    """Decodes token by token in time linear in the tokens.

    A token's text depends on the ones before it (spaces, characters of several tokens), so each is decoded together
    with the last few: what a window gains over the window without it is the token's text.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []  # given out, kept as context
        self._pending: list[int] = []  # not given out
        self._known = ""  # text of the window

    def push(self, token: int) -> str:
        self._pending.append(token)
        text = self._decode(self._window + self._pending)
        if len(self._pending) < MAX_PENDING and (text.endswith(REPLACEMENT) or len(text) <= len(self._known)):
            return ""
        return self._release(text)

    def flush(self) -> str:
        return self._release(self._decode(self._window + self._pending)) if self._pending else ""

    def _release(self, text: str) -> str:
        new = text[len(self._known) :]
        self._window, self._pending = self._pending, []
        self._known = self._decode(self._window)
        return new

"""Tokens to text and back: the tiny model's real tokenizer, decoded piece by piece."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from enginefakes import EOS, Script, ScriptedEngine, say
from gatewaykit import tiny_codec
from hypothesis import given, settings
from hypothesis import strategies as st

from saocli.errors import ConfigError, EngineError
from saocli.gateway.codec import HFCodec
from saocli.gateway.ids import RECORD_ID, new_ulid
from saocli.gateway.selfcheck import self_check
from saocli.gateway.stops import StopTrimmer
from saocli.models.tiny import build_tiny
from saocli.types import Span


def decoded(ids: list[int]) -> tuple[str, list[str]]:
    decoder = tiny_codec().decoder()
    pieces = [*(decoder.push(token) for token in ids), decoder.flush()]
    return "".join(pieces), pieces


@settings(deadline=None)
@given(st.text())
def test_text_that_comes_byte_by_byte_is_the_text(text: str) -> None:
    out, pieces = decoded([*text.encode(), EOS])
    assert out == text
    assert not any("\ufffd" in piece for piece in pieces if "\ufffd" not in text)


@settings(deadline=None)
@given(st.lists(st.integers(0, 259), max_size=60))
def test_any_ids_decode(ids: list[int]) -> None:
    decoded(ids)


def test_a_half_character_at_the_end_shows_as_one_replacement() -> None:
    assert decoded(list("é".encode())[:1]) == ("\ufffd", ["", "\ufffd"])


def test_decoding_is_linear_even_in_garbage() -> None:
    def seconds(tokens: int) -> float:
        start = time.perf_counter()
        decoded([0xC3] * tokens)
        return time.perf_counter() - start

    seconds(100)
    assert seconds(8000) < 24 * seconds(1000)  # quadratic would be 64 times


def test_prompts_are_rendered_by_the_models_template() -> None:
    ids = tiny_codec().render([{"role": "user", "content": "hi"}])
    assert ids == (256, *b"user\nhi", 257, 10, 256, *b"assistant\n")
    assert tiny_codec().encode("hi") == tuple(b"hi")
    assert tiny_codec().token_text(EOS) == "<|im_end|>"
    assert tiny_codec().vocab_size == 260


def test_qwen_s_own_tokenizer_reads_as_its_file_does(tmp_path: Path) -> None:
    """AutoTokenizer builds one for that class out of the vocabulary."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import AutoTokenizer, Qwen2Tokenizer

    letters = {letter: index for index, letter in enumerate(sorted(ByteLevel.alphabet()))}
    pairs = [("h", "i"), ("1", "2"), ("Ġ", "h"), ("Ġ", "Ġ")]
    vocabulary = letters | {"".join(pair): len(letters) + index for index, pair in enumerate(pairs)}
    Qwen2Tokenizer(vocab=vocabulary, merges=pairs).save_pretrained(tmp_path)
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), HFCodec(tmp_path)
    assert type(theirs) is Qwen2Tokenizer
    assert ours.vocab_size == len(theirs)
    for text in ("hi hi  hi\n\n12 123", "e\u0301 <|endoftext|> x", "漢字 'S it's"):
        assert list(ours.encode(text)) == theirs(text).input_ids, text


def test_the_gateway_does_without_torch(tmp_path: Path) -> None:
    build_tiny(tmp_path, seed=0)
    program = "import sys; from saocli.gateway.app import make_app; from saocli.gateway.codec import HFCodec\n"
    program += "HFCodec(sys.argv[1]); print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program, str(tmp_path)], text=True) == "False\n"


def test_a_folder_without_a_tokenizer_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no usable tokenizer"):
        HFCodec(tmp_path)


@settings(deadline=None)
@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=3), max_size=3), st.data())
def test_pieces_are_trimmed_as_the_whole_is(text: str, stops: list[str], data: st.DataObject) -> None:
    trimmer, out, at = StopTrimmer(stops), "", 0
    while at < len(text) and not trimmer.matched:
        size = data.draw(st.integers(1, 3))
        out += trimmer.push(text[at : at + size])
        at += size
    out += trimmer.flush()
    # The first stop string to be complete ends it, as when tokens are looked at one by one.
    seen = text[:at]
    found = [start for stop in stops if (start := seen.find(stop)) >= 0]
    assert trimmer.matched == bool(found)
    assert out == (seen[: min(found)] if found else text)


def test_receipt_ids_are_ulids_that_sort_by_time() -> None:
    ids = [new_ulid() for _ in range(3)]
    assert len(set(ids)) == 3
    assert all(len(made) == 26 and RECORD_ID.fullmatch(made) for made in ids)
    time.sleep(0.002)
    assert new_ulid() > max(ids)


async def test_an_engine_without_training_data_is_refused_at_the_start() -> None:
    good = say("2")
    flaws: list[tuple[Script, str]] = [
        (replace(good, ids=()), "no token ids"),
        (replace(good, logprobs=()), "no log-probabilities"),
        (replace(good, logprobs=(-0.5, None)), "no log-probabilities"),
        (replace(good, spans=()), "which weights"),
    ]
    for script, message in flaws:
        with pytest.raises(EngineError, match=message):
            await self_check(ScriptedEngine(lambda _, script=script: script), tiny_codec())
    spans = (Span(version="s@3", start=0, end=2),)
    assert await self_check(ScriptedEngine(lambda _: replace(good, spans=spans)), tiny_codec()) == "s@3"

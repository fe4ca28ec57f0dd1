"""The trainer channel: frames, what JSON cannot carry, and who is let in."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saocli.config.trainer import DType, TrainerConfig
from saocli.errors import TrainerError
from saocli.trainer import channel
from saocli.trainer.messages import (
    WorkerSetup,
    batch_from_json,
    batch_to_json,
    output_from_json,
    output_to_json,
    setup_from_json,
    setup_to_json,
)
from saocli.types import Batch, RolloutMoments, Sample, StepOutput

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), JSON))
def test_frames_bring_back_what_was_packed(message: channel.Message) -> None:
    frame = channel.pack(message)
    assert channel.body_length(frame[:4]) == len(frame) - 4
    assert channel.unpack(frame[4:]) == message


def test_numbers_that_json_lacks_travel_as_null() -> None:
    assert channel.unpack(channel.pack({"a": [math.nan, {"b": -math.inf}], "c": 1.5})[4:]) == {
        "a": [None, {"b": None}],
        "c": 1.5,
    }


@pytest.mark.parametrize("body", [b"\x80\x04K\x01.", b"[1]", b"{"])
def test_anything_but_a_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(TrainerError, match="trainer channel"):
        channel.unpack(body)


def test_an_absurd_length_is_refused_before_it_is_read() -> None:
    with pytest.raises(TrainerError, match="frame of"):
        channel.body_length(b"\xff\xff\xff\xff")


async def handshake(client: Callable[[str, int], Awaitable[object] | object], secret: str) -> tuple[bool, object]:
    """Whether the listener let `client` in, and what the client got or raised."""
    admitted: asyncio.Future[bool] = asyncio.Future()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            admitted.set_result(await channel.admit(reader, writer, secret))
        except (asyncio.IncompleteReadError, ConnectionError, TrainerError):
            admitted.set_result(False)
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        result = await asyncio.to_thread(client, host, port)
    except TrainerError as error:
        result = error
    async with asyncio.timeout(5):
        known = await admitted
    server.close()
    return known, result


async def test_both_ends_with_the_secret_meet() -> None:
    known, connection = await handshake(
        lambda host, port: channel.WorkerChannel.connect(host, port, "s3cret"), "s3cret"
    )
    assert known
    assert isinstance(connection, channel.WorkerChannel)


async def test_a_worker_with_another_secret_sees_through_the_listener() -> None:
    known, error = await handshake(lambda host, port: channel.WorkerChannel.connect(host, port, "other"), "s3cret")
    assert not known
    assert isinstance(error, TrainerError)


def impostor(host: str, port: int) -> bytes:
    """A peer that knows the protocol, not the secret: it plays the listener's own proof back."""
    import socket

    with socket.create_connection((host, port)) as connection:
        connection.sendall(channel.pack({"nonce": "0" * 64}))
        file = connection.makefile("rb")
        seen = file.read(4)
        seen += (body := file.read(channel.body_length(seen)))
        connection.sendall(channel.pack({"proof": channel.unpack(body)["proof"]}))
        return seen + file.read()


async def test_a_peer_without_the_secret_is_turned_away_and_never_sees_it() -> None:
    known, seen = await handshake(impostor, "s3cret")
    assert not known
    assert isinstance(seen, bytes)
    assert b"s3cret" not in seen


def test_carriers_survive_the_channel() -> None:
    sample = Sample(
        receipt="r",
        prompt_ids=(1, 2),
        response_ids=(3, 4),
        action_mask=(1, 1),
        rollout_logprobs=(-0.1, -math.inf),
        score=0.1 + 0.2,
        temperature=0.7,
        group="g",
        versions=("v0",),
        truncated=True,
        reported_at=1e9 + 0.123,
    )
    batch = Batch(step=3, samples=(sample,))
    assert batch_from_json(channel.unpack(channel.pack(batch_to_json(batch))[4:])) == batch
    output = StepOutput(
        step=3,
        metrics={"a": 0.1, "b": None},
        actor_trained=True,
        moments=(RolloutMoments(count=1, return_sum=0.1, return_sq=0.01, residual_sum=0.0, residual_sq=0.0),),
    )
    assert output_from_json(channel.unpack(channel.pack(output_to_json(output))[4:])) == output


def test_a_workers_setup_survives_the_channel() -> None:
    from trainerkit import SAO

    setup = WorkerSetup(
        trainer=TrainerConfig(dtype=DType.BF16, value_clip=0.2),
        arm=SAO,
        model_folder="/m",
        context_length=8,
        seed=1,
        host="h",
        port=1,
    )
    revived = setup_from_json(channel.unpack(channel.pack(setup_to_json(setup))[4:]))
    assert revived == setup
    assert revived.trainer.dtype is DType.BF16
    assert dataclasses.asdict(revived.arm) == dataclasses.asdict(SAO)

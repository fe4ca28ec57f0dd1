"""The channel between the program and the trainer's first rank: JSON frames over TCP, both ends authenticated.

A frame is a 4-byte big-endian length and that many bytes of UTF-8 JSON. Nothing that arrives is ever unpickled. Each
end proves that it knows the secret by an HMAC over both ends' fresh nonces; the secret itself never travels.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import math
import secrets
import socket
from typing import Any

from saocli.errors import TrainerError

SECRET_VARIABLE = "SAO_TRAINER_SECRET"
MAX_FRAME = 256 * 1024 * 1024
Message = dict[str, Any]


def pack(message: Message) -> bytes:
    """One frame; numbers that JSON cannot carry become null."""
    body = json.dumps(_finite(message), allow_nan=False, separators=(",", ":")).encode()
    return len(body).to_bytes(4, "big") + body


def unpack(body: bytes) -> Message:
    """The message of a frame's body. Raises TrainerError for anything but a JSON object."""
    try:
        message = json.loads(body)
    except ValueError as error:
        raise TrainerError(f"the trainer channel carried something other than JSON: {error}") from error
    if not isinstance(message, dict):
        raise TrainerError("the trainer channel carried JSON that is no object")
    return message


def body_length(prefix: bytes) -> int:
    """Length from a frame's first four bytes. Raises TrainerError above MAX_FRAME."""
    length = int.from_bytes(prefix, "big")
    if length > MAX_FRAME:
        raise TrainerError(f"the trainer channel announced a frame of {length} bytes", fix=f"at most {MAX_FRAME}")
    return length


def proof(secret: str, role: str, ours: str, theirs: str) -> str:
    """What shows that `role` knows the secret: HMAC-SHA256 over its role and both nonces, its own first."""
    return hmac.new(secret.encode(), f"{role}:{ours}:{theirs}".encode(), hashlib.sha256).hexdigest()


async def read(reader: asyncio.StreamReader) -> Message:
    """The next message. Raises asyncio.IncompleteReadError or ConnectionError once the other end is gone."""
    return unpack(await reader.readexactly(body_length(await reader.readexactly(4))))


async def admit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str) -> bool:
    """The listening end's half of the handshake; False for a peer that does not know the secret."""
    nonce = secrets.token_hex(32)
    theirs = (await read(reader)).get("nonce", "")
    writer.write(pack({"nonce": nonce, "proof": proof(secret, "server", nonce, theirs)}))
    answer = (await read(reader)).get("proof", "")
    return hmac.compare_digest(str(answer), proof(secret, "worker", theirs, nonce))


class WorkerChannel:
    """The worker's end, blocking."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("rb")

    @classmethod
    def connect(cls, host: str, port: int, secret: str) -> WorkerChannel:
        """Connect and authenticate both ends. Raises TrainerError when the listener does not know the secret."""
        channel = cls(socket.create_connection((host, port)))
        nonce = secrets.token_hex(32)
        channel.send({"nonce": nonce})
        answer = channel.receive()
        theirs = str(answer.get("nonce", ""))
        if not hmac.compare_digest(str(answer.get("proof", "")), proof(secret, "server", theirs, nonce)):
            channel.close()
            raise TrainerError(f"{host}:{port} does not know this run's secret")
        channel.send({"proof": proof(secret, "worker", nonce, theirs)})
        return channel

    def send(self, message: Message) -> None:
        self._connection.sendall(pack(message))

    def receive(self) -> Message:
        """The next message. Raises TrainerError once the other end is gone."""
        return unpack(self._exactly(body_length(self._exactly(4))))

    def close(self) -> None:
        self._file.close()
        self._connection.close()

    def _exactly(self, length: int) -> bytes:
        data = self._file.read(length)
        if len(data) < length:
            raise TrainerError("the trainer channel was closed")
        return data


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value

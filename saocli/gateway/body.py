"""Request bodies: bounded, JSON, an object; and its fields by type."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from fastapi import Request

from saocli.gateway.errors import ApiError, invalid

T = TypeVar("T")
MAX_DEPTH = 64
INLINE_BYTES = 64 * 1024  # work on more than this goes to a thread, since it would hold up other requests


async def offloaded(size: int, function: Callable[..., T], *args: Any) -> T:
    """Call `function` here, or in a thread when it works on `size` > INLINE_BYTES."""
    return function(*args) if size <= INLINE_BYTES else await asyncio.to_thread(function, *args)


async def read_object(request: Request, limit: int) -> dict[str, Any]:
    """The body as a JSON object; 413 beyond `limit` bytes, 400 for anything else."""
    data = bytearray()
    too_large = ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")
    if int(request.headers.get("content-length", "0")) > limit:
        raise too_large
    async for part in request.stream():
        data += part
        if len(data) > limit:
            raise too_large
    return await offloaded(len(data), _parse, bytes(data))


def _parse(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
        if b"\\u" in data:  # an unpaired surrogate is legal JSON and no text
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON in UTF-8: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    if _deeper(body, MAX_DEPTH):
        raise ApiError(400, f"the body is nested more than {MAX_DEPTH} deep", code="invalid_json")
    return body


def _deeper(value: Any, depth: int) -> bool:
    """More than `depth` containers inside each other."""
    level = [value]
    for _ in range(depth):
        level = [child for item in level for child in _children(item) if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def _children(container: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def shown(value: Any) -> str:
    """A refused value as the client wrote it, cut short."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"


def whole(value: Any) -> int | None:
    """`value` as int, or None when it is no whole number: 3.0 is one in JSON, true is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if isinstance(value, int) or value.is_integer() else None


def finite_number(value: Any) -> float | None:
    """`value` as float, or None when it is no number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def number(body: Mapping[str, Any], name: str, *, default: float, low: float, high: float) -> float:
    """A number in [low, high]; missing and null are the default."""
    if (value := body.get(name)) is None:
        return default
    result = finite_number(value)
    if result is None or not low <= result <= high:
        raise invalid(name, f"must be a number from {low:g} to {high:g}, got {shown(value)}")
    return result


def integer(body: Mapping[str, Any], name: str, *, low: int, high: int) -> int | None:
    """An integer in [low, high]; None when missing or null."""
    if (value := body.get(name)) is None:
        return None
    result = whole(value)
    if result is None or not low <= result <= high:
        raise invalid(name, f"must be an integer from {low} to {high}, got {shown(value)}")
    return result


def boolean(body: Mapping[str, Any], name: str) -> bool:
    """true or false; missing and null are false."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(name, f"must be true or false, got {shown(value)}")
    return bool(value)


def all_finite(value: Any) -> bool:
    """No NaN or infinity anywhere in a JSON value."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(all_finite(item) for item in value.values())
    return not isinstance(value, list) or all(all_finite(item) for item in value)


def with_nulls(value: Any) -> Any:
    """A JSON value with null for every number that JSON cannot carry."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: with_nulls(item) for key, item in value.items()}
    return [with_nulls(item) for item in value] if isinstance(value, list | tuple) else value

"""The order of the tests."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that of several workers none is left alone with them at the end."""
    items.sort(key=_longest_first)


def _longest_first(item: pytest.Item) -> tuple[float, bool]:
    limit = item.get_closest_marker("timeout")
    return (-limit.args[0] if limit is not None else 0.0, item.get_closest_marker("slow") is None)

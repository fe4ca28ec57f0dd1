"""Bytes and places for people."""

from __future__ import annotations

from pathlib import Path


def size(count: int) -> str:
    """In GiB from 0.1 GiB on, in MiB from 1 MiB on, else in KiB; 0 is 0."""
    if count >= 0.1 * 2**30:
        return f"{count / 2**30:,.1f} GiB"
    if count >= 2**20:
        return f"{count / 2**20:,.0f} MiB"
    return f"{count / 2**10:,.0f} KiB" if count else "0"


def place(path: Path | str) -> str:
    """A path as short as it stays clear: from here, else with ~ for the home folder."""
    path = Path(path)
    if path == Path.cwd():
        return "this folder"
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)

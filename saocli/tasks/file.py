"""Problems from a YAML, JSONL or CSV file."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saocli.config.tasks import TasksConfig
from saocli.errors import ConfigError
from saocli.tasks.listed import listed
from saocli.types import Problem

COLUMNS = ("id", "prompt", "answer", "grader")
OPTIONS = (*COLUMNS, "select")


def file_problems(config: TasksConfig) -> list[Problem]:
    """The problems of the file `tasks.path`.

    `tasks.options` may name the columns (`{prompt: Problem, answer: Short Answer}`; the default is the key's own name,
    an id that is nowhere is the row's number) and `select` rows by number, the first being 1. Raises ConfigError that
    names the file, the column or the number that is wrong.
    """
    if config.path is None:
        raise ConfigError("tasks.source=file needs tasks.path")
    if unknown := sorted(set(config.options) - set(OPTIONS)):
        raise ConfigError(f"tasks.options has unknown keys: {', '.join(unknown)}", fix=f"known: {', '.join(OPTIONS)}")
    path = Path(config.path).expanduser()
    rows = _rows(path)
    columns = {key: str(config.options.get(key, key)) for key in COLUMNS}
    required = [key for key in COLUMNS if key in config.options or key in ("prompt", "answer")]
    items = []
    for number in _selected(config.options.get("select"), len(rows), path):
        row = rows[number - 1]
        if not isinstance(row, Mapping):
            raise ConfigError(f"{path}: row {number} is not a mapping: {row!r}")
        for key in required:
            if columns[key] not in row:
                raise ConfigError(
                    f"{path}: row {number} has no column {columns[key]!r} (tasks.options.{key})",
                    fix=f"its columns: {', '.join(map(str, row))}",
                )
        item = {key: row[column] for key, column in columns.items() if column in row}
        items.append((f"{path}: row {number}", {"id": str(number)} | item))
    return listed(items, config.grader)


def _rows(path: Path) -> list[Any]:
    """Every row of the file, in order."""
    read = {".yaml": _yaml, ".yml": _yaml, ".jsonl": _jsonl, ".csv": _csv}.get(path.suffix.lower())
    if read is None:
        raise ConfigError(f"tasks.path={path} is no .yaml, .jsonl or .csv file")
    try:
        return read(path.read_text(encoding="utf-8-sig"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"tasks.path={path} cannot be read: {error}") from error


def _yaml(text: str, path: Path) -> list[Any]:
    import yaml

    try:
        rows = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no valid YAML: {error}") from error
    if not isinstance(rows, list):
        raise ConfigError(f"{path} holds no list of problems")
    return rows


def _jsonl(text: str, path: Path) -> list[Any]:
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise ConfigError(f"{path}: line {number} is no valid JSON: {error}") from error
    return rows


def _csv(text: str, path: Path) -> list[Any]:
    try:
        return list(csv.DictReader(text.splitlines(keepends=True), strict=True))
    except csv.Error as error:
        raise ConfigError(f"{path} is no valid CSV: {error}") from error


def _selected(select: Any, rows: int, path: Path) -> list[int]:
    """The row numbers to take, each checked."""
    if select is None:
        return list(range(1, rows + 1))
    if not isinstance(select, list):
        raise ConfigError(f"tasks.options.select is no list of row numbers: {select!r}")
    for number in select:
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= rows:
            raise ConfigError(f"tasks.options.select: {path} has no row {number!r}", fix=f"rows are 1 to {rows}")
    return select

"""GPUs are counted by asking the driver's own tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from saocli.config.gpus import gpu_count


def put_smi(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{body}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 4), ("", 0), ("-1", 0), ("0", 1), ("0,2", 2), ("GPU-aa,GPU-bb,GPU-cc", 3), ("0,1,2,3,4,5", 4)],
)
def test_counted_and_cut_to_what_is_visible(
    visible: str | None, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "\\n".join(
        f"GPU {index}: Some GPU (UUID: GPU-{index})\\n  MIG 1g.5gb Device 0: (UUID: MIG-{index})" for index in range(4)
    )
    put_smi(tmp_path, f'[ "$1" = -L ] && printf "{lines}\\n"', monkeypatch)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_count() == count


def test_no_driver_means_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    put_smi(tmp_path, "exit 9", monkeypatch)
    assert gpu_count() == 0
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert gpu_count() == 0

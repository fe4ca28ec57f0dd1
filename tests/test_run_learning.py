"""The tiny random model learns its task from single rollouts, through the whole stack."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from runkit import sao, steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_tiny_model_learns_its_letters(tmp_path: Path) -> None:
    started = time.monotonic()
    serve = ("serve", "conf=letters", "--drive", "--steps", "320", "--json", "gateway.port=0")
    done = sao(*serve, cwd=tmp_path, timeout=590)
    assert done.returncode == 0, done.stderr
    records = steps(done.stdout)
    scores = [record["reward/mean"] for record in records]
    print(f"{len(scores)} rollouts in {time.monotonic() - started:.0f} s")
    assert sum(scores[:30]) / 30 < 0.3
    assert sum(scores[-60:]) / 60 >= 0.8  # and 0.97 after 400
    assert all(
        record["train_rollout_logprob_abs_diff_max"] <= 1e-4 for record in records if record["sao/actor_trained"]
    )
    assert records[-1]["critic/explained_variance_rolling"] is not None

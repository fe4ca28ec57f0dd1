"""The whole loop through the real SGLang server, as a newcomer on a CPU starts it."""

from __future__ import annotations

from pathlib import Path

from runkit import THREADS, events, sao, steps
from sglangkit import ENVIRONMENT, needs_sglang


@needs_sglang
def test_eighteen_rollouts_train_and_both_sides_agree_after_every_update(tmp_path: Path) -> None:
    done = sao(
        *("serve", "conf=smoke_sglang_cpu", "--drive", "--json", "gateway.port=0", "engine.start_timeout_s=900"),
        *("trainer.start_timeout_s=900", *THREADS),
        cwd=tmp_path,
        timeout=1100,
        env={"SAO_SGLANG_PYTHON": str(ENVIRONMENT / "bin/python")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    records = steps(done.stdout)
    assert [record["step"] for record in records] == list(range(1, 19))
    trained = [record for record in records if record["sao/actor_trained"]]
    assert [record["step"] for record in trained] == list(range(11, 19))  # after ten steps of the critic alone
    for record in (records[0], *trained):
        assert record["train_rollout_logprob_abs_diff_max"] < 1e-4
    assert all(record["time/publish_s"] > 0 for record in trained)
    assert events(done.stdout)[-1]["trained"] == 18


def test_an_engine_without_sglang_says_how_to_build_one(tmp_path: Path) -> None:
    done = sao("serve", "conf=smoke_sglang_cpu", "--drive", "gateway.port=0", "engine.python=/no/python", cwd=tmp_path)
    assert done.returncode == 5
    assert "tests/sglang/build_env.sh" in done.stdout + done.stderr

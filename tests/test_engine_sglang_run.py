"""The whole loop through the real SGLang server, as a newcomer on a CPU starts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runkit import THREADS, events, sao
from sglangkit import ENVIRONMENT, needs_sglang


def driven(cwd: Path, *overrides: str) -> list[dict[str, Any]]:
    """What a driven run says of itself, which has ended well."""
    done = sao(
        *("serve", "conf=smoke_sglang_cpu", "--drive", "--json", "gateway.port=0", "engine.start_timeout_s=900"),
        *("trainer.start_timeout_s=900", *THREADS, *overrides),
        cwd=cwd,
        timeout=1100,
        env={"SAO_SGLANG_PYTHON": str(ENVIRONMENT / "bin/python")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return events(done.stdout)


def check_agreement(records: list[dict[str, Any]], *, warmup: int) -> None:
    """After `warmup` steps of the critic alone each updates the actor, and both sides agree after every update."""
    trained = [record for record in records if record["sao/actor_trained"]]
    assert [record["step"] for record in trained] == list(range(warmup + 1, len(records) + 1))
    for record in (records[0], *trained):
        assert record["train_rollout_logprob_abs_diff_max"] < 1e-4
    assert all(record["time/publish_s"] > 0 for record in trained)


@needs_sglang
def test_eighteen_rollouts_train_and_both_sides_agree_after_every_update(tmp_path: Path) -> None:
    told = driven(tmp_path)
    records = [event for event in told if event["event"] == "step"]
    assert [record["step"] for record in records] == list(range(1, 19))
    check_agreement(records, warmup=10)
    assert told[-1]["trained"] == 18


@needs_sglang
def test_the_trainer_publishes_over_a_process_group(tmp_path: Path) -> None:
    told = driven(tmp_path, "engine.publish=distributed", "tasks.attempts=2", "trainer.critic_warmup_steps=2")
    check_agreement([event for event in told if event["event"] == "step"], warmup=2)
    assert told[-1]["trained"] == 6
    (log,) = tmp_path.glob("runs/smoke_sglang_cpu-*/logs/engine.log")
    assert log.read_text().count("init custom process group") == 1


def test_an_engine_without_sglang_says_how_to_build_one(tmp_path: Path) -> None:
    done = sao("serve", "conf=smoke_sglang_cpu", "--drive", "gateway.port=0", "engine.python=/no/python", cwd=tmp_path)
    assert done.returncode == 5
    assert "tests/sglang/build_env.sh" in done.stdout + done.stderr

"""The whole loop on the tiny model: `sao serve conf=cpu_smoke --drive` and what it leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runkit import THREADS, chain, sao, steps

pytestmark = pytest.mark.slow

DRIVE = ("serve", "conf=cpu_smoke", "--drive", "--json", "gateway.port=0", *THREADS)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """One driven run: its folder and its JSON lines."""
    cwd = tmp_path_factory.mktemp("smoke")
    done = sao(*DRIVE, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return cwd, done.stdout


def test_eighteen_rollouts_make_eighteen_releases(smoke: tuple[Path, str]) -> None:
    cwd, output = smoke
    assert [record["step"] for record in steps(output)] == list(range(1, 19))
    releases = chain(cwd)
    assert [entry["operation"] for entry in releases] == ["base"] + ["training"] * 18
    assert [entry["current"] for entry in releases] == [False] * 18 + [True]
    assert [entry["parent_release_id"] for entry in releases[1:]] == [entry["release_id"] for entry in releases[:-1]]
    receipts = [receipt for entry in releases for receipt in entry["receipts"]]
    assert len(set(receipts)) == len(receipts) == 18


def test_on_policy_means_on_policy(smoke: tuple[Path, str]) -> None:
    """At step 1, and at each step after the weights were swapped, trainer and engine agree and nothing is masked."""
    records = steps(smoke[1])
    swapped = [record for record in records if record["sao/actor_trained"]]
    assert [record["step"] for record in swapped] == list(range(11, 19))
    for record in [records[0], *swapped]:
        assert record["train_rollout_logprob_abs_diff_max"] <= 1e-4
        assert record["pg_clipfrac"] == 0.0
        assert record["sao/policy_lag_max"] == 0


def test_the_critic_warms_up_alone(smoke: tuple[Path, str]) -> None:
    releases = chain(smoke[0])
    assert len({entry["digest"] for entry in releases[:11]}) == 1
    assert len({entry["digest"] for entry in releases[10:]}) == 9
    assert all(record["sao/critic_updates"] == 2 for record in steps(smoke[1]))


def test_the_run_directory_says_what_was_run(smoke: tuple[Path, str]) -> None:
    run = smoke[0] / "runs" / "latest"
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 18
    assert "reef-local" not in (run / "config.yaml").read_text()
    assert (run / "token").stat().st_mode & 0o777 == 0o600
    assert json.loads((run / "environment.json").read_text())["packages"]["torch"]
    assert not (run / "service.json").exists()
    assert len(list((run / "releases").glob("*/weights"))) == 2


def test_the_same_seed_gives_the_same_bits(smoke: tuple[Path, str], tmp_path: Path) -> None:
    again = sao(*DRIVE, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert [entry["digest"] for entry in chain(tmp_path)] == [entry["digest"] for entry in chain(smoke[0])]
    assert [record["scores"] for record in steps(again.stdout)] == [record["scores"] for record in steps(smoke[1])]
    other = sao(*DRIVE, "seed=1", "--steps", "11", cwd=tmp_path)
    assert other.returncode == 0, other.stderr
    assert chain(tmp_path)[11]["digest"] != chain(smoke[0])[11]["digest"]


def test_learning_rates_of_zero_leave_every_byte(tmp_path: Path) -> None:
    still = ("trainer.actor_lr=0", "trainer.critic_lr=0", "trainer.critic_warmup_steps=0")
    done = sao(*DRIVE, *still, "--steps", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    releases = chain(tmp_path)
    assert len(releases) == 4
    assert len({entry["release_id"] for entry in releases}) == 4
    assert len({entry["digest"] for entry in releases}) == 1

"""What is wrong with a conf is said once, in the keys' own names, with a way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from saocli.config.load import load_run
from saocli.errors import ConfigError

INTERNALS = (
    "hydra",
    "omegaconf",
    "full_key",
    "object_type",
    "struct",
    "Traceback",
    "RunConfig",
    "primary config",
    "search path",
)


def refused(name: str, *overrides: str, conf_dir: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_run(name, overrides, conf_dir=conf_dir, detect=lambda: 0)
    assert caught.value.exit_code == 2
    text = str(caught.value)
    assert not [word for word in INTERNALS if word.lower() in text.lower()], text
    return text


@pytest.mark.parametrize(
    ("override", "key", "meant"),
    [
        ("bacth_size=4", "bacth_size", "batch_size"),
        ("trainer.actorlr=1", "trainer.actorlr", "trainer.actor_lr"),
        ("+trainer.actorlr=1", "trainer.actorlr", "trainer.actor_lr"),
        ("++trainer.actorlr=1", "trainer.actorlr", "trainer.actor_lr"),
        ("actor_lr=1", "actor_lr", "trainer.actor_lr"),
        ("tasks.maxtokens=4", "tasks.maxtokens", "tasks.max_tokens"),
        ("machin=cpu", "machin", "machine"),
        ("trainer.ranks.x=3", "trainer.ranks.x", "trainer.ranks"),
        ("+trainer={actorlr: 1}", "trainer.actorlr", "trainer.actor_lr"),
        ("~bacth_size", "bacth_size", "batch_size"),
    ],
)
def test_a_misspelled_key_names_the_nearest(override: str, key: str, meant: str) -> None:
    text = refused("cpu_smoke", override)
    assert f"unknown key {key} in an override" in text
    assert f"did you mean {meant}?" in text


@pytest.mark.parametrize("override", ["+tpu=4", "+machine@foo=cpu"])
def test_nothing_unknown_is_taken(override: str) -> None:
    assert "unknown key" in refused("cpu_smoke", override)


def test_the_composer_itself_cannot_be_configured() -> None:
    with pytest.raises(ConfigError, match=r"unknown key hydra\.run\.dir"):
        load_run("cpu_smoke", ["hydra.run.dir=x"], detect=lambda: 0)


def test_a_wrong_name_lists_the_names() -> None:
    text = refused("imo_smoek")
    assert text.startswith("no conf named 'imo_smoek' — did you mean imo_smoke?\n")
    assert "arith · arith_batch4 · compare · " in text
    assert "(sao conf lists them)" in text
    assert "no conf named '../pyproject'" in refused("../pyproject")


def test_a_wrong_option_lists_the_options() -> None:
    text = refused("cpu_smoke", "trainer=gpuu")
    assert "no trainer named 'gpuu' — did you mean gpu?" in text
    assert "cpu · gpu" in text
    assert "no machine named '3'" in refused("cpu_smoke", "machine=3")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("batch_size=four", "batch_size: Value 'four'"),
        ("batch_size=1.5", "batch_size: Value '1.5'"),
        ("machine.kind=tpu", "expected one of auto, cpu, gpu"),
        ("trainer.lr_decay=cosine", "expected one of constant, linear"),
        ("tasks.eval.at=[a]", "tasks.eval.at[0]"),
        ("batch_size=${nope}", "Interpolation key 'nope' not found"),
        ("batch_size=1,2", "names several values"),
        ("batch_size=[1", "is not a valid override"),
        ("=3", "names no key"),
        ("~trainer.actor_lr", "trainer.actor_lr cannot be taken away"),
    ],
)
def test_a_bad_value(override: str, said: str) -> None:
    assert said in refused("cpu_smoke", override)


@pytest.mark.parametrize("override", ["~arm.eps_high", "arm.eps_high=null", "arm.eps_high=???", "~arm"])
def test_eps_high_never_falls_back(override: str) -> None:
    assert "arm.eps_high" in refused("cpu_smoke", override)


@pytest.mark.parametrize("missing", ["eps_low", "eps_high"])
def test_an_arm_without_a_bound(missing: str, tmp_path: Path) -> None:
    (tmp_path / "arm").mkdir()
    given = {"eps_low": 0.3, "eps_high": 5.0}
    del given[missing]
    (tmp_path / "arm" / "half.yaml").write_text(
        "name: sao\n" + "".join(f"{key}: {value}\n" for key, value in given.items())
    )
    assert f"no value for arm.{missing}\n" in refused("cpu_smoke", "arm=half", conf_dir=tmp_path)


def test_mistakes_in_a_user_s_file(tmp_path: Path) -> None:
    (tmp_path / "typo.yaml").write_text("defaults: [cpu_smoke, _self_]\ntrainer: {actorlr: 1}\n")
    text = refused("typo", conf_dir=tmp_path)
    assert "unknown key trainer.actorlr in typo.yaml" in text
    assert "did you mean trainer.actor_lr?" in text

    (tmp_path / "kind.yaml").write_text("defaults: [cpu_smoke, _self_]\nbatch_size: many\n")
    assert "batch_size: Value 'many'" in refused("kind", conf_dir=tmp_path)

    (tmp_path / "profile.yaml").write_text("defaults: [cpu_smoke, _self_]\nprofiles: {cpu: [trainr=cpu]}\n")
    text = refused("profile", conf_dir=tmp_path)
    assert "unknown key trainr in profiles.cpu of profile.yaml" in text
    assert "did you mean trainer?" in text

    (tmp_path / "base_only.yaml").write_text("defaults: [base, _self_]\nscenario: x\n")
    assert "tasks" in refused("base_only", conf_dir=tmp_path)

    (tmp_path / "broken.yaml").write_text("a: [1\n")
    assert "broken.yaml cannot be read" in refused("cpu_smoke", conf_dir=tmp_path)


def test_a_missing_folder(tmp_path: Path) -> None:
    assert "does not exist" in refused("cpu_smoke", conf_dir=tmp_path / "nowhere")

"""`sao conf`: the menu, and a run with the origin of each value."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from saocli.cli.app import main


@pytest.fixture
def sao(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("SAO_CONF_DIR", raising=False)

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["sao", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        return capsys.readouterr().out

    return run


def test_the_menu_is_aligned(sao) -> None:
    lines = sao("conf").splitlines()
    rows = {line.split()[0]: line for line in lines}
    assert {"arith", "arith_batch4", "cpu_smoke", "imo_smoke", "letters"} <= set(rows)
    longest = max(map(len, rows))
    assert all(line[longest : longest + 2] == "  " and line[longest + 2] != " " for line in lines)
    assert all(line == line.rstrip() for line in lines)


def test_the_menu_as_json(sao) -> None:
    confs = json.loads(sao("conf", "--json"))["confs"]
    assert [conf["name"] for conf in confs] == sorted(conf["name"] for conf in confs)
    assert all(conf["description"] for conf in confs)


def test_a_run_with_origins(sao) -> None:
    lines = sao("conf", "imo_smoke", "arm=sao_coding", "trainer.actor_lr=2e-6").splitlines()
    assert lines[0] == "imo_smoke · profile cpu (asked for)" or lines[0] == "imo_smoke · profile cpu (no GPU found)"
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines[1:]}
    assert rows["arm.eps_high"] == ["3.0", "conf/arm/sao_coding.yaml (override)"]
    assert rows["trainer.actor_lr"] == ["2e-06", "override"]
    assert rows["tasks.max_tokens"] == ["128", "profile cpu"]
    assert rows["trainer.critic_lr"] == ["5e-06", "default in code"]
    assert rows["gateway.token"] == ["***", "default in code"]
    assert rows["steps"] == ["null", "default in code"]


def test_a_run_as_json(sao) -> None:
    shown = json.loads(sao("conf", "conf=cpu_smoke", "gateway.token=hunter2", "--json"))
    assert (shown["conf"], shown["profile"]) == ("cpu_smoke", "cpu")
    assert shown["config"]["arm"]["eps_high"] == 5.0
    assert shown["origins"]["arm.eps_high"] == "conf/arm/sao.yaml"
    assert shown["overrides"] == ["gateway.token=***"]
    assert "hunter2" not in json.dumps(shown)


def test_a_user_s_folder(sao, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [cpu_smoke, _self_]\ndescription: my own run\nseed: 9\n")
    assert "my own run" in sao("conf", "--conf-dir", str(tmp_path))
    shown = json.loads(sao("conf", "mine", "--conf-dir", str(tmp_path), "--json"))
    assert shown["config"]["seed"] == 9
    assert shown["origins"]["seed"] == f"{tmp_path}/mine.yaml"

"""Each check says what it found, what is needed, and the fix for a miss; none stops another."""

from __future__ import annotations

import dataclasses
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from saocli.config.engine import EngineKind
from saocli.config.estimate import Estimate, estimate
from saocli.config.load import load_run
from saocli.config.model import ModelConfig
from saocli.config.run import RunConfig
from saocli.config.shape import Shape
from saocli.doctor import checks
from saocli.doctor.diagnosis import examine_conf, examine_every_conf, examine_machine, missing
from saocli.doctor.finding import Finding, Mark, guarded
from saocli.doctor.interpreters import Interpreters
from saocli.doctor.machine import Gpu, Machine, look
from saocli.doctor.model import PUBLISHED, config_json, model_finding
from saocli.doctor.stack import stack_findings
from saocli.doctor.versions import KNOWN, TESTED, TESTED_SGLANG, accepted, judge
from saocli.doctor.words import size
from saocli.errors import ConfigError

GIB = 2**30
QWEN = Shape.from_config(PUBLISHED["Qwen/Qwen2.5-1.5B-Instruct"])
MACHINE = Machine(
    gpus=(),
    ram_total=64 * GIB,
    ram_available=32 * GIB,
    shm=2 * GIB,
    open_files=1024,
    open_files_hard=4096,
)


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("SAO_CONF_DIR", raising=False)


def run(name: str = "cpu_smoke", *overrides: str, gpus: int = 0) -> RunConfig:
    return load_run(name, overrides, detect=lambda: gpus).config


def gpu(free: int) -> Gpu:
    return Gpu("H", total=80 * GIB, free=free * GIB)


def plan(config: RunConfig, **changes: Any) -> Estimate:
    return dataclasses.replace(estimate(config, QWEN), **changes)


def marks(findings: list[Finding]) -> dict[str, Mark]:
    return {one.what: one.mark for one in findings}


def test_a_check_that_fails_is_a_miss_and_no_more() -> None:
    def fails() -> list[Finding]:
        raise ConfigError("what", fix="how")

    def lacks() -> list[Finding]:
        raise ModuleNotFoundError("No module named 'x'")

    assert guarded("a", fails) == [Finding(Mark.MISSING, "a", "what", fix="how")]
    assert guarded("b", lacks)[0].found == "No module named 'x'"


@pytest.mark.parametrize(
    ("free", "mark"),
    [
        ((), Mark.MISSING),
        ((80,), Mark.MISSING),
        ((12, 80), Mark.OK),  # the freest is the trainer's
        ((60, 60), Mark.MISSING),
        ((80, 4), Mark.MISSING),
    ],
)
def test_gpus_must_hold_trainer_and_engine(free: tuple[int, ...], mark: Mark) -> None:
    config = run("imo_smoke", gpus=2)
    machine = dataclasses.replace(MACHINE, gpus=tuple(map(gpu, free)))
    finding = checks.gpu_finding(machine, config, plan(config))
    assert finding.mark is mark
    assert finding.needed == "2 with 68.2 GiB, 9.4 GiB free"
    assert ("machine=cpu" in (finding.fix or "")) is (mark is Mark.MISSING)
    assert checks.gpu_finding(machine, config, None).mark is (Mark.OK if len(free) >= 2 else Mark.MISSING)


def test_gpus_are_no_matter_on_a_cpu() -> None:
    assert checks.gpu_finding(MACHINE, run(), None).mark is Mark.NOTE


def test_memory_and_disk(tmp_path: Path) -> None:
    config = run("imo_smoke")
    needs = plan(config).ram_bytes
    for available, mark in ((needs, Mark.OK), (needs - 1, Mark.MISSING)):
        machine = dataclasses.replace(MACHINE, ram_available=available)
        assert checks.memory_finding(machine, plan(config)).mark is mark
    assert checks.disk_finding(tmp_path / "runs", plan(config, weights_bytes=1, state_bytes=0)).mark is Mark.OK
    full = checks.disk_finding(tmp_path / "runs", plan(config, weights_bytes=2**60, state_bytes=0))
    assert full.mark is Mark.MISSING
    assert "keep_last" in str(full.fix)


def test_shared_memory_is_for_those_who_use_it() -> None:
    small = dataclasses.replace(MACHINE, shm=64 * 2**20)
    sglang = dataclasses.replace(run(), engine=dataclasses.replace(run().engine, kind=EngineKind.SGLANG))
    assert checks.shm_finding(small, run()).mark is Mark.NOTE
    assert checks.shm_finding(small, sglang).mark is Mark.MISSING
    assert checks.shm_finding(MACHINE, sglang).mark is Mark.OK


def test_open_files_follow_the_attempts() -> None:
    config = run("cpu_smoke", "tasks.concurrency=300")
    finding = checks.files_finding(MACHINE, config)
    assert finding.mark is Mark.MISSING
    assert finding.needed == "1,028 for 300 attempts at once"
    assert finding.fix == "ulimit -n 4096"
    low = dataclasses.replace(MACHINE, open_files_hard=1024)
    assert "administrator" in str(checks.files_finding(low, config).fix)
    assert checks.files_finding(MACHINE, run()).mark is Mark.OK


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = run("cpu_smoke", f"gateway.port={taken.getsockname()[1]}")
        finding = guarded("port", lambda: [checks.port_finding(config.gateway)])[0]
        assert finding.mark is Mark.MISSING
        assert "gateway.port" in str(finding.fix)
    assert checks.port_finding(config.gateway).mark is Mark.OK


def test_a_run_directory_that_cannot_be_made(tmp_path: Path) -> None:
    assert checks.runs_finding(tmp_path / "runs").mark is Mark.OK
    assert list(tmp_path.iterdir()) == []
    assert checks.runs_finding(Path("/proc/self")).mark is Mark.MISSING


def test_the_context_must_fit_the_model() -> None:
    model = {"max_position_embeddings": 256}
    assert checks.context_finding(run(), model).mark is Mark.OK
    assert checks.context_finding(run("cpu_smoke", "context_length=257"), model).mark is Mark.MISSING
    assert checks.context_finding(run(), {}).mark is Mark.OK


@pytest.mark.parametrize(
    ("installed", "cuda", "mark"),
    [
        ("2.13.0+cpu", False, Mark.OK),
        ("2.13.0+cpu", True, Mark.MISSING),
        ("2.13.0+cu130", True, Mark.OK),
        ("2.10.0", False, Mark.NOTE),
        ("2.5.1", False, Mark.MISSING),
        ("2.14.0", False, Mark.MISSING),
        (None, False, Mark.MISSING),
    ],
)
def test_versions(installed: str | None, cuda: bool, mark: Mark) -> None:
    finding = judge("torch", installed, "2.13.0", SpecifierSet(">=2.6,<2.14"), label="torch", where="py", cuda=cuda)
    assert finding.mark is mark
    assert finding.needed == "2.13.0 tested, >=2.6 <2.14"
    assert (finding.fix is not None) is (mark is Mark.MISSING)


def test_the_tested_versions_are_accepted_ones() -> None:
    limits = accepted()
    for name, tested in {**TESTED_SGLANG, **TESTED}.items():
        assert name == "saocli" or limits[name].contains(Version(tested)), name


def test_interpreters_are_asked_without_importing_anything() -> None:
    found = Interpreters(KNOWN).ask(sys.executable)
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert found.packages["saocli"] == TESTED["saocli"]
    assert set(found.packages) == set(KNOWN)


def put_python(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_another_interpreter_is_asked_for_its_own_stack(tmp_path: Path) -> None:
    answer = '{"python": "3.10.1", "packages": {"sglang": "0.5.23", "torch": "2.14.1", "transformers": null}}'
    python = put_python(tmp_path / "python", f"echo '{answer}'")
    config = dataclasses.replace(
        run(), engine=dataclasses.replace(run().engine, kind=EngineKind.SGLANG, python=str(python))
    )
    found = {one.what: one for one in stack_findings(config, Interpreters(KNOWN))}
    # SGLang's Python and torch are its own affair.
    assert {found[name].mark for name in ("engine.python", "engine.sglang", "engine.torch")} == {Mark.OK}
    assert found["engine.transformers"].fix == f"{python} -m pip install 'transformers==5.19.0'"
    assert found["torch"].mark is Mark.OK


def test_servers_that_run_already_need_nothing_here(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    attached = dataclasses.replace(run().engine, kind=EngineKind.SGLANG, python=absent, urls=["http://a:1"])
    config = dataclasses.replace(run(), engine=attached)
    assert not missing(stack_findings(config, Interpreters(KNOWN)))


@pytest.mark.parametrize("body", ["exit 3", "echo nonsense", None])
def test_an_interpreter_that_does_not_start(body: str | None, tmp_path: Path) -> None:
    python = put_python(tmp_path / "python", body) if body else tmp_path / "absent"
    config = run("cpu_smoke", f"trainer.python={python}")
    found = {one.what: one for one in stack_findings(config, Interpreters(KNOWN))}
    assert found["trainer.python"].mark is Mark.MISSING
    assert found["trainer.python"].fix
    assert found["python"].mark is Mark.OK


def test_a_model_that_is_here_made_or_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = ModelConfig(name="tiny", builder="tiny")
    assert model_finding(tiny, config_json(tiny), probe=True).found == "tiny, 1.1M parameters · made on the spot"
    assert list(tmp_path.iterdir()) == [], "nothing is made"
    nowhere = ModelConfig(name="mine")
    assert config_json(nowhere) is None
    finding = model_finding(nowhere, None, probe=True)
    assert finding.mark is Mark.MISSING
    assert "model.path" in str(finding.fix)
    wheel = run("imo_smoke").model
    assert model_finding(wheel, config_json(wheel), probe=True).mark is Mark.NOTE


def test_a_conf_is_examined_as_if_its_gpus_were_there(tmp_path: Path) -> None:
    diagnosis = examine_conf(
        "imo_smoke", ["machine=gpu"], MACHINE, Interpreters(KNOWN), tmp_path, conf_dir=None, probe=False
    )
    found = marks(list(diagnosis.findings))
    assert diagnosis.loaded.profile == "gpu"
    assert found["conf"] is Mark.OK
    assert found["GPUs"] is Mark.MISSING
    assert found["memory"] is Mark.OK
    assert diagnosis.plan is not None


def test_a_broken_model_path_stops_no_other_check(tmp_path: Path) -> None:
    diagnosis = examine_conf(
        "cpu_smoke", [f"model.path={tmp_path}"], MACHINE, Interpreters(KNOWN), tmp_path, conf_dir=None
    )
    found = marks(list(diagnosis.findings))
    assert found["model"] is Mark.MISSING
    assert found["memory"] is Mark.NOTE  # nothing to compare with
    assert found["run directory"] is Mark.OK
    assert diagnosis.plan is None


def test_every_conf_has_a_line(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("defaults: [base, _self_]\nscenari: x\n")
    (tmp_path / "huge.yaml").write_text("defaults: [cpu_smoke, _self_]\nengine: {slots: 100000000}\n")
    found = {one.what: one for one in examine_every_conf(MACHINE, Interpreters(KNOWN), tmp_path, conf_dir=tmp_path)}
    assert found["cpu_smoke"].mark is Mark.OK
    assert found["cpu_smoke"].found.endswith("tiny · cpu")
    assert found["huge"].mark is Mark.NOTE  # it cannot run here, which is no fault of the machine's
    assert found["huge"].found.startswith("memory: 32.0 GiB available of 64.0 GiB, needs")
    assert found["broken"].mark is Mark.MISSING


def test_this_machine_is_well(tmp_path: Path) -> None:
    machine = look()
    assert 0 < machine.ram_available <= machine.ram_total
    assert machine.gpus == ()
    found = [one for one in missing(examine_machine(machine, Interpreters(KNOWN), tmp_path)) if one.what != "port"]
    assert found == []


def test_gpus_are_read_and_cut_to_what_is_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = "\\n".join(f"{i}, GPU-a{i}, H200, 1000, {900 + i}" for i in range(3))
    put_python(tmp_path / "nvidia-smi", f'[ "$1" = -L ] && printf "GPU 0\\nGPU 1\\nGPU 2\\n" || printf "{listed}\\n"')
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    for visible, free in ((None, [900, 901, 902]), ("2,0", [900, 902]), ("GPU-a1", [901]), ("", [])):
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert [one.free // 2**20 for one in look().gpus] == free


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0"), (1536, "2 KiB"), (90 * 2**20, "90 MiB"), (2**30, "1.0 GiB"), (1500 * 2**30, "1,500.0 GiB")],
)
def test_sizes_for_people(count: int, said: str) -> None:
    assert size(count) == said

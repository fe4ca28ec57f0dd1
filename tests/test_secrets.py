"""Secrets: in no command line, no file of the run, no message; and nothing that a socket brings is ever unpickled."""

from __future__ import annotations

import ast
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from runkit import ENV, THREADS, alive, descendants, sao, served, wait_gone

import saocli
from saocli.cli.tokens import reveals_secret
from saocli.config.gateway import GatewayConfig
from saocli.config.load import load_run
from saocli.errors import ConfigError
from saocli.gateway.server import local_url

SECRET = "hunter2-hunter2"
SOURCES = sorted(Path(saocli.__file__).parent.rglob("*.py"))
# What runs what it reads. `torch.load` may be told not to.
UNSAFE = {
    *("pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"),
    *("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list", "send_object_list"),
    *("recv_object_list", "eval", "exec", "unsafe_load", "full_load"),
}
# Both ends of a pipe between a process and the child that it started.
PIPES = {Path("tasks/graders/pool.py"), Path("tasks/graders/worker.py")}


def unsafe(tree: ast.AST) -> Iterator[str]:
    """Names that a module imports or calls and that could run what they are given."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in UNSAFE)
        elif isinstance(node, ast.ImportFrom):
            yield from (name for name in (node.module or "", *(a.name for a in node.names)) if name in UNSAFE)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if called in ("eval", "exec") or ("." in called and called.rpartition(".")[2] in UNSAFE - {"eval", "exec"}):
                yield called
            if called == "torch.load" and given.get("weights_only") != "True":
                yield "torch.load without weights_only=True"
            if called in ("yaml.load", "yaml.load_all") or given.get("allow_pickle") == "True":
                yield called


def test_nothing_that_arrives_is_unpickled() -> None:
    found = {path.relative_to(SOURCES[0].parent): sorted(set(unsafe(ast.parse(path.read_text())))) for path in SOURCES}
    assert {path: names for path, names in found.items() if names} == {path: ["pickle"] for path in PIPES} | {
        path: names for path, names in found.items() if path in PIPES
    }
    bad = "import pickle\nfrom torch.distributed import broadcast_object_list\ntorch.load(f)\nyaml.load(f)\nx.eval()"
    assert sorted(unsafe(ast.parse(bad))) == [
        "broadcast_object_list",
        "pickle",
        "torch.load without weights_only=True",
        "yaml.load",
    ]


def test_what_is_shown_of_a_config_has_no_token() -> None:
    config = load_run("cpu_smoke", [f"gateway.token={SECRET}"], detect=lambda: 0)
    assert config.config.gateway.token == SECRET
    assert SECRET not in repr(config)
    assert SECRET not in repr(dataclasses.replace(GatewayConfig(), token=SECRET))


def test_the_token_comes_from_the_environment_unless_it_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SAO_TOKEN", SECRET)
    monkeypatch.setenv("OTHER", "other")
    given = {
        (): (SECRET, "SAO_TOKEN"),
        ("gateway.token=reef-local",): ("reef-local", "override"),
        ("gateway.token=${oc.env:OTHER}",): ("other", "override"),
        ("gateway.host=0.0.0.0",): (SECRET, "SAO_TOKEN"),
    }
    for overrides, expected in given.items():
        loaded = load_run("cpu_smoke", overrides, detect=lambda: 0)
        assert (loaded.config.gateway.token, loaded.origins["gateway.token"]) == expected
        assert SECRET not in loaded.yaml + str(loaded.values) + str(loaded.overrides) + str(loaded.origins)
    (tmp_path / "config.yaml").write_text(load_run("cpu_smoke", detect=lambda: 0).yaml)
    assert load_run("config", conf_dir=tmp_path, detect=lambda: 0).config.gateway.token == SECRET


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "0", "10.0.0.1", "sao.example.org", "fe80::1", "localhost.evil"])
def test_a_host_that_others_reach_needs_a_token_of_its_own(host: str) -> None:
    for default in ([], ["gateway.token=reef-local"]):
        with pytest.raises(ConfigError, match=r"gateway\.token is the default one"):
            load_run("cpu_smoke", [f"gateway.host='{host}'", *default], detect=lambda: 0)
    loaded = load_run("cpu_smoke", [f"gateway.host='{host}'", f"gateway.token={SECRET}"], detect=lambda: 0)
    assert loaded.config.gateway.host == host


@pytest.mark.parametrize("token", ["with blank", "tab\\\\tbed", "smörgås", "line\nbreak"])
def test_a_token_that_no_header_carries_is_refused_unseen(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAO_TOKEN", token.replace("\\\\t", "\t"))
    with pytest.raises(ConfigError, match=r"gateway\.token has a character") as refused:
        load_run("cpu_smoke", detect=lambda: 0)
    assert token not in str(refused.value)


def test_addresses_are_those_that_local_clients_reach() -> None:
    urls = [local_url(host, 1) for host in ("127.0.0.1", "0.0.0.0", "::", "::1", "box.local")]
    assert urls == [
        "http://127.0.0.1:1",
        "http://127.0.0.1:1",
        "http://[::1]:1",
        "http://[::1]:1",
        "http://box.local:1",
    ]


def test_overrides_that_reveal_a_secret_are_known() -> None:
    assert [reveals_secret(text) for text in ("gateway.token=x", "++gateway.token=x", "gateway.port=1")] == [1, 1, 0]
    assert not reveals_secret("gateway.token=${oc.env:X}")
    with pytest.raises(ConfigError, match="by itself"):
        reveals_secret("gateway={token: x, port: 1}")


def test_a_comparison_does_not_write_a_token_down(tmp_path: Path) -> None:
    done = sao("compare", "sao", f"gateway.token={SECRET}", cwd=tmp_path)
    assert (done.returncode, "SAO_TOKEN" in done.stderr) == (2, True)
    assert not (tmp_path / "runs").exists()


def command_lines(pids: set[int]) -> str:
    lines = []
    for pid in pids:
        path = Path(f"/proc/{pid}/cmdline")
        lines.append(path.read_bytes().replace(b"\0", b" ").decode() if path.exists() else "")
    return "\n".join(lines)


def environment(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(pair.decode().partition("=")[::2] for pair in pairs if b"=" in pair)


def files_below(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".safetensors")


@pytest.mark.slow
def test_a_run_keeps_its_secrets(tmp_path: Path) -> None:
    """The client's token and those of engine and trainer, while a detached service of ours runs."""
    started = sao(
        *("serve", "conf=cpu_smoke", "gateway.port=0", f"gateway.token={SECRET}", *THREADS, "--detach", "--json"),
        cwd=tmp_path,
    )
    assert started.returncode == 0, started.stderr
    (service,) = tmp_path.glob("runs/*-*/service.json")
    pid = int(service.read_text().partition('"pid": ')[2].partition(",")[0])
    below = descendants(pid)
    try:
        made = sao("attempt", "--prompt", "2+2?", "--json", cwd=tmp_path)
        assert made.returncode == 0, made.stderr
        secrets = {
            value
            for child in alive(below)
            for name, value in environment(child).items()
            if name in ("SAO_ENGINE_KEY", "SAO_TRAINER_SECRET")
        }
        assert len(secrets) == 2, "engine and trainer have one each"
        shown = command_lines({pid, *below}) + started.stdout + started.stderr + made.stdout + made.stderr
        for secret in (SECRET, *secrets):
            assert secret not in shown
            holders = {path.name: path for path in files_below(service.parent) if secret.encode() in path.read_bytes()}
            assert set(holders) == ({"token"} if secret == SECRET else set())
        assert service.with_name("token").stat().st_mode & 0o777 == 0o600
        assert all("SAO_TOKEN" not in environment(child) for child in alive(below))
        assert listeners(below) == {"0100007F"}, "loopback alone"
        status = sao("status", "--json", cwd=tmp_path)
        assert status.returncode == 0
        assert SECRET not in status.stdout
    finally:
        assert sao("stop", cwd=tmp_path).returncode == 0
    assert wait_gone({pid, *below}, timeout=60) == set()


def listeners(pids: set[int]) -> set[str]:
    """Addresses on which these processes listen, as /proc writes them."""
    inodes = {
        os.readlink(link).removeprefix("socket:[").removesuffix("]")
        for pid in alive(pids)
        for link in Path(f"/proc/{pid}/fd").glob("*")
        if link.is_symlink() and os.readlink(link).startswith("socket:[")
    }
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:] if Path(table).exists() else []:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(fields[1].partition(":")[0])
    return found


@pytest.mark.slow
def test_a_service_with_a_token_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENV, "SAO_TOKEN", SECRET)
    with served(tmp_path, "conf=cpu_smoke") as running:
        models = f"{running.url}/v1/models"
        assert httpx.get(models, headers={"authorization": "Bearer reef-local"}).status_code == 401
        assert httpx.get(models, headers={"authorization": f"Bearer {SECRET}"}).status_code == 200
        assert SECRET not in (running.run / "config.yaml").read_text() + (running.run / "overrides").read_text()

"""kill -9 of every part at every point of a step: the run goes on, and no bit of it is another one."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import holdkit
import httpx
import pytest
import torch
from killkit import VICTIMS, Life, check_chain, check_reports, greedy, query
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

POINTS = ("waiting", "sampling", "accepted", "leased", "critic", "optimizer", "saving", "saved", "loaded")
EVERY = 2  # steps between two states on disk, so that half of the restores make a step again
STEPS = 11  # at least as many as the cells of one victim take, with those between
CONF = (
    "conf=cpu_smoke",
    "trainer.critic_warmup_steps=0",
    "trainer.lr_decay=linear",
    f"trainer.lr_decay_steps={STEPS + 4}",
)
COMPUTED = ("pg_loss", "actor/grad_norm", "critic/loss", "critic/grad_norm", "critic/explained_variance_rolling")


class Player:
    """Makes the same attempts with the same scores on every run; one trains each step."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.answers: dict[str, dict[str, Any]] = {}
        self.said: dict[int, str] = {}  # greedily, by step

    def sample(self, step: int) -> str:
        body = {"model": "tiny", "prompt": f"abc {step}", "max_tokens": 8, "seed": step}
        return self._post("/v1/completions", body).headers["x-reef-agent-record-id"]

    def report(self, step: int, receipt: str) -> None:
        body = {"agent_record_id": f"r{step}", "score": (step % 4 + 1) / 4, "references": [receipt]}
        answer = self._post("/reef/report", body).json()
        assert answer["trains"]
        assert self.answers.setdefault(f"r{step}", answer) == answer, "another answer to the same report"

    def trained(self, step: int) -> None:
        """Wait until the step is committed, and what it led to is served and written down."""
        self._until(lambda: self._head()[0] >= step)
        self._until(lambda: len((self.life.run / "metrics.jsonl").read_text().splitlines()) == step)
        version = self._head()[1]

        def serves() -> bool:
            try:
                self.said[step], answered = greedy(self.life.http)
            except (AssertionError, httpx.TransportError):
                return False
            assert answered == version, "the engine serves another version than the head's"
            return True

        self._until(serves)

    def attempt(self, step: int) -> None:
        self.report(step, self.sample(step))
        self.trained(step)

    def _head(self) -> tuple[int, str]:
        ((step, version),) = query(self.life.run, "SELECT step, weight_version FROM releases WHERE current = 1")
        return step, version

    def _post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """Come again where a part is being started."""
        deadline = time.monotonic() + 60
        while True:
            answer = self.life.http.post(path, json=body)
            if answer.status_code == 200:
                return answer
            assert answer.status_code == 503, answer.text
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.1)

    def _until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 90
        while not done():
            assert self.life.lives, self.life.log.read_text()[-3000:]
            assert time.monotonic() < deadline, self.life.log.read_text()[-3000:]
            time.sleep(0.02)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    """The run in which nothing is killed, and no state is ever saved."""
    life = Life(tmp_path_factory.mktemp("straight"), (*CONF, "releases.checkpoint_every=0"))
    try:
        life.start()
        life.wait_healthy()
        player = Player(life)
        for step in range(1, STEPS + 1):
            player.attempt(step)
        assert life.end() == 0
        yield player
    finally:
        life.abandon()


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Life, holdkit.Holds]]:
    """A run that waits where it is told to."""
    (folder := tmp_path / "holds").mkdir()
    python = holdkit.trainer_python(tmp_path / "python")
    here = Path(__file__).parent
    life = Life(
        tmp_path,
        (*CONF, f"releases.checkpoint_every={EVERY}", f"trainer.python={python}"),
        command=(sys.executable, holdkit.__file__, "serve"),
        env={holdkit.FOLDER: str(folder), "PYTHONPATH": f"{here}:{here.parent}"},
    )
    try:
        life.start()
        life.wait_healthy()
        yield life, holdkit.Holds(folder)
    finally:
        life.abandon()


@pytest.mark.parametrize("victim", VICTIMS)
def test_killed_at_every_point_of_a_step(straight: Player, held: tuple[Life, holdkit.Holds], victim: str) -> None:
    life, holds = held
    player, step = Player(life), 0
    for point in POINTS:
        if point == "accepted":
            holds.arm("idle")  # reached once the step before is over
        if point == "accepted" or (point in ("saving", "saved") and (step + 1) % EVERY != 0):
            player.attempt(step := step + 1)
        step += 1
        kill_at(point, step, player, holds, victim)
        player.trained(step)

        digests = check_chain(life.run)
        assert digests == check_chain(straight.life.run)[: step + 1], point
        assert len(set(digests)) == step + 1, "each step moved the weights"
        assert player.said[step] == straight.said[step], point
        assert check_reports(life.run, player.answers) == {"trained": step}
        check_served(life.run, step, player.said[step])
    assert life.end() == 0
    assert life.starts == (1 if victim in ("trainer", "engine") else 1 + len(POINTS))
    assert life.log.read_text().count("starting it again") == (len(POINTS) if life.starts == 1 else 0)
    for name in COMPUTED:
        assert recorded(life.run, name) == recorded(straight.life.run, name)[:step], name


def kill_at(point: str, step: int, player: Player, holds: holdkit.Holds, victim: str) -> None:
    """Bring `step` to `point`, kill there, and have its report posted, once more where it was already."""
    life = player.life
    receipt: str | None = None
    stream: threading.Thread | None = None
    match point:
        case "waiting":
            pass
        case "sampling":
            stream = streaming(life)
        case _:
            holds.wait_reached("idle") if point == "accepted" else holds.arm(point)
            receipt = player.sample(step)
            player.report(step, receipt)
            if point != "accepted":
                holds.wait_reached(point)
            check_reached(life.run, point, step)
    assert life.kill(victim), "nobody to kill"
    holds.release()
    if stream is not None:
        stream.join(60)
    if victim in ("process", "all"):
        life.start()
        life.wait_healthy()
    player.report(step, receipt or player.sample(step))


def streaming(life: Life) -> threading.Thread:
    """A generation that runs, and ends one way or another; nobody grades it."""
    began = threading.Event()

    def read() -> None:
        body = {"model": "tiny", "prompt": "x", "max_tokens": 240, "stream": True}
        try:
            with life.http.stream("POST", "/v1/completions", json=body) as answer:
                for _ in answer.iter_lines():
                    began.set()
        except httpx.TransportError:
            pass

    thread = threading.Thread(target=read)
    thread.start()
    assert began.wait(60)
    assert thread.is_alive()
    return thread


def check_reached(run: Path, point: str, step: int) -> None:
    """The run is where it is said to be."""
    (state,) = (row[0] for row in query(run, "SELECT state FROM reports WHERE id = ?", f"r{step}"))
    assert state == ("queued" if point == "accepted" else "leased")
    folder = run / "releases" / f"{step:06d}"
    there = sorted(one.name for one in folder.glob("*")) if folder.exists() else []
    if point == "saving":
        assert there == [".state.partial", "weights"]
        assert any((folder / ".state.partial/actor").iterdir())
        assert not (folder / ".state.partial/critic").exists()
    else:
        wanted = {"saved": ["state", "weights"], "loaded": ["state", "weights"] if step % EVERY == 0 else ["weights"]}
        assert there == wanted.get(point, [])
    assert query(run, "SELECT max(step) FROM releases") == [(step - 1,)], "it is committed already"


def check_served(run: Path, step: int, said: str) -> None:
    """What the engine says greedily is what the head's weights on disk say, by an implementation that is not ours."""
    weights = run / "releases" / f"{step:06d}" / "weights"
    ids = AutoTokenizer.from_pretrained(weights)("abc", return_tensors="pt").input_ids
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
    with torch.no_grad():
        first = torch.log_softmax(model(ids).logits[0, -1].double(), dim=-1)
    assert json.loads(said)[1]["token_logprobs"][0] == pytest.approx(float(first.max()), abs=1e-5)


def recorded(run: Path, name: str) -> list[Any]:
    return [json.loads(line)[name] for line in (run / "metrics.jsonl").read_text().splitlines()]

"""Weights that do not pass over the disk: what they need is checked when the run is built."""

from __future__ import annotations

import pytest

from saocli.config.engine import Publish
from saocli.config.load import load_run
from saocli.errors import ConfigError


@pytest.mark.parametrize("publish", list(Publish))
def test_every_way_is_there_on_a_cpu(publish: Publish) -> None:
    overrides = [f"engine.publish={publish}", "engine.python=/sglang"]
    assert load_run("smoke_sglang_cpu", overrides, detect=lambda: 0).config.engine.publish is publish


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["engine.publish=distributed", "engine.device=gpu"], "engine.device is gpu and trainer.device is cpu"),
        (["engine.publish=tensor", "engine.device=gpu"], "engine.device is gpu and trainer.device is cpu"),
        (["engine.publish=distributed", "engine.replicas=2"], "there are several engines"),
        (["engine.publish=tensor", "engine.urls=[http://127.0.0.1:1]"], "engine.urls is set"),
        (["engine.publish=distributed", "engine.kind=embedded"], "engine.kind is embedded but engine.publish"),
    ],
)
def test_refused(overrides: list[str], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run("smoke_sglang_cpu", ["engine.python=/sglang", *overrides], detect=lambda: 2)
    assert named in caught.value.message
    assert caught.value.fix

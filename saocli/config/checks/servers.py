"""How many engines there are, and whose."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import SplitResult, urlsplit

from saocli.config.checks.problem import Problem
from saocli.config.run import RunConfig


def servers(config: RunConfig) -> Iterator[Problem]:
    engine = config.engine
    if not engine.urls:
        if engine.key_env is not None:
            yield Problem(
                f"engine.key_env is {engine.key_env} but engine.urls is empty",
                "an engine that is started here has a key of its own: leave it out, or name the running servers",
            )
        if engine.router is not None:
            yield Problem(
                f"engine.router is {engine.router} but engine.urls is empty",
                "every server behind it is given the weights by its own address: name them all in engine.urls",
            )
        return
    if engine.replicas > 1:
        yield Problem(
            f"engine.replicas is {engine.replicas} but engine.urls names {len(engine.urls)} running servers",
            "replicas are started here, beside none that run already: leave one of the two out",
        )
    for url in engine.urls:
        yield from _url("engine.urls", url)
    if len({url.rstrip("/") for url in engine.urls}) < len(engine.urls):
        yield Problem("engine.urls names a server twice", "it would get each of its weights twice at once")
    if engine.router is not None:
        yield from _url("engine.router", engine.router)
        if engine.router.rstrip("/") in {url.rstrip("/") for url in engine.urls}:
            yield Problem(
                f"engine.router is {engine.router}, which is in engine.urls too",
                "it is the router's own address: weights go to the servers behind it",
            )


def _url(key: str, url: str) -> Iterator[Problem]:
    parts = _split(url)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        yield Problem(f"{key} has '{url}', which is no address", "write http://host:port")
    elif parts.username is not None:
        yield Problem(
            f"{key} has a name or password in the address of {parts.hostname}",
            "configurations are shown and stored: put the token in an environment variable, and its name in "
            "engine.key_env",
        )


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None

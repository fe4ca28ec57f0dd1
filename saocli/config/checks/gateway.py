"""Where the gateway listens, and for whom."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from saocli.config.checks.problem import Problem
from saocli.config.gateway import DEFAULT_TOKEN, SCENARIO_NAME
from saocli.config.run import RunConfig

# An override on the command line is there for every user of the machine to read.
GIVE = "SAO_TOKEN=… in the environment, or gateway.token='${oc.env:NAME}'"


def gateway(config: RunConfig) -> Iterator[Problem]:
    gateway = config.gateway
    # Evaluations go to a scenario of their own, with "-eval" at its end.
    if not re.fullmatch(SCENARIO_NAME, f"{config.scenario}-eval"):
        yield Problem(
            f"scenario is '{config.scenario}'",
            "1 to 59 of A-Z a-z 0-9 . _ -, starting with a letter or digit: it is part of URLs and release ids",
        )
    if not gateway.token:
        yield Problem("gateway.token is empty", f"{GIVE}, or leave it out on a loopback host")
    elif not re.fullmatch(r"[!-~]+", gateway.token):
        yield Problem("gateway.token has a character that no HTTP header carries", "use printable ASCII, no blanks")
    if gateway.port > 65535:
        yield Problem(f"gateway.port is {gateway.port}", "it must be at most 65535")
    if gateway.token == DEFAULT_TOKEN and not _loopback(gateway.host):
        yield Problem(
            f"gateway.host is {gateway.host}, which others can reach, but gateway.token is the default one",
            f"give a secret of your own: {GIVE}",
        )
    if gateway.max_outstanding and gateway.max_outstanding < config.batch_size:
        yield Problem(
            f"gateway.max_outstanding is {gateway.max_outstanding}, less than batch_size, {config.batch_size}",
            "a batch would never be full: raise it, or 0 for no limit",
        )


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"

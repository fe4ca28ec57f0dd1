"""Starts the trainer's ranks on this node and ends them together: `python -m saocli.trainer.launcher SETUP.json RANKS`.

Torch's own launcher keeps its rendezvous open to every network address, unpickles what it reads there, and takes
seconds to import. Here several ranks meet in a file that only this user can reach, and nothing listens. No torch here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from saocli.process import exit_with_parent

MEETING = "SAO_RANKS_MEET"  # names the file in which the ranks find each other
WORKER = "saocli.trainer.megatron.worker"
GRACE_S = 2.0


def main(setup_file: str, ranks: int) -> int:
    """Run them until all have ended well, which gives 0, or one has not: then the others are ended too."""
    exit_with_parent()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with contextlib.ExitStack() as ending:
        meeting: Path | None = None
        if ranks > 1:
            meeting = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="sao-ranks-"))) / "meeting"
        running: dict[int, int] = {}
        for rank in range(ranks):
            process = subprocess.Popen(
                [sys.executable, "-m", WORKER, setup_file],
                stdin=subprocess.PIPE,  # closed by our death, whatever kills us
                env=rank_environment(os.environ, rank=rank, ranks=ranks, meeting=meeting),
            )
            ending.callback(_end, process)
            running[process.pid] = rank
        while running:
            pid, status = os.wait()
            code = os.waitstatus_to_exitcode(status)
            if code != 0:
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
                print(f"rank {running[pid]} {how}", file=sys.stderr, flush=True)
                return 1
            del running[pid]
    return 0


def rank_environment(given: Mapping[str, str], *, rank: int, ranks: int, meeting: Path | None) -> dict[str, str]:
    """The environment of one of `ranks` ranks on this node, all of whose traffic stays on it; one rank meets nobody."""
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    return {
        "GLOO_SOCKET_IFNAME": loopback,
        "NCCL_SOCKET_IFNAME": loopback,
        **given,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        **({MEETING: str(meeting)} if meeting else {}),
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))

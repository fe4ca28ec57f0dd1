"""The process of one rank of the trainer: `python -m saocli.trainer.megatron.worker SETUP.json`.

Started by `trainer.launcher`; the first rank connects back to the program. Nothing heavy is imported before it watches
its parent: that takes seconds, in which the parent may die.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from saocli.config.trainer import Device
from saocli.errors import SaoError
from saocli.process import exit_with_parent, loading
from saocli.trainer.channel import SECRET_VARIABLE, WorkerChannel
from saocli.trainer.messages import setup_from_json


def main(setup_file: Path) -> None:
    """Serve commands until told to close."""
    exit_with_parent()
    setup = setup_from_json(json.loads(setup_file.read_text()))
    secret = os.environ.pop(SECRET_VARIABLE)
    first = os.environ["RANK"] == "0"
    channel = WorkerChannel.connect(setup.host, setup.port, secret) if first else None
    with loading():
        if setup.trainer.device is Device.CPU:
            # Before anything imports Megatron, which copies names out of torch.
            from saocli.trainer.megatron import cpu

            cpu.patch()
        from saocli.trainer.megatron.commands import Worker
    try:
        worker = Worker(setup, channel)
    except SaoError as error:
        if channel is not None:
            channel.send({"error": error.message, "fix": error.fix})
        raise SystemExit(1) from error
    worker.serve()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

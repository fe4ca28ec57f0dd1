"""The embedded engine's process: `python -m saocli.engine.embedded.server`, started by `launch.start_embedded`."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
import traceback
from pathlib import Path

from saocli.config.trainer import DType
from saocli.engine.embedded.launch import KEY_VARIABLE, READY
from saocli.errors import EngineError
from saocli.process import exit_with_parent, loading


def main() -> None:
    """Load the model, bind a free loopback port, report it in the status file, serve until ended."""
    options = _options()
    exit_with_parent()
    with loading():  # seconds, in which the parent may die
        import torch
        import uvicorn
        from transformers.utils import logging as transformers_logging

        from saocli.engine.embedded.app import make_app
        from saocli.engine.embedded.model import ServedModel
        from saocli.engine.embedded.scheduler import Scheduler
    dtypes = {DType.FP32: torch.float32, DType.BF16: torch.bfloat16}
    threading.excepthook = _die
    key = os.environ.pop(KEY_VARIABLE)
    torch.set_num_threads(options.threads)
    transformers_logging.disable_progress_bar()
    _report(options.status, "loading weights")
    try:
        model = ServedModel(
            options.model, dtype=dtypes[options.dtype], slots=options.slots, context_length=options.context_length
        )
    except EngineError as error:
        sys.exit(f"error: {error}")
    scheduler = Scheduler(
        model, slots=options.slots, seed=options.seed, version=options.version, threads=options.threads
    )
    scheduler.start()
    # asyncio sets TCP_NODELAY only where the protocol is named; without it each answer waits 40 ms for an ACK.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        _report(options.status, f"{READY}{listener.getsockname()[1]}")
        config = uvicorn.Config(
            make_app(scheduler, key=key, folder=options.model),
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        uvicorn.Server(config).run(sockets=[listener])
    scheduler.stop()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--context-length", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--dtype", type=DType, choices=list(DType), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--status", type=Path, required=True)
    return parser.parse_args()


def _report(status: Path, line: str) -> None:
    with status.open("a") as file:
        file.write(line + "\n")


def _die(failure: threading.ExceptHookArgs) -> None:
    """An engine whose decode thread is gone must not look like a slow one."""
    traceback.print_exception(failure.exc_type, failure.exc_value, failure.exc_traceback)
    os._exit(1)


if __name__ == "__main__":
    main()

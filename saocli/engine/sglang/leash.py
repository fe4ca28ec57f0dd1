"""Runs `python -m sglang.launch_server`, unmodified, on a leash: when the parent is gone, the whole group ends.

Run as a script by SGLang's own interpreter, so it imports nothing but the standard library. The parent holds the other
end of stdin and never writes to it: end-of-file means that it died. Without this a killed `sao serve` would leave
SGLang's schedulers on the GPUs.
"""

import os
import runpy
import signal
import sys
import threading


def _watch() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: its modules are none of SGLang's business
    threading.Thread(target=_watch, name="leash", daemon=True).start()
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)

"""An engine's rank, as far as a sender can see: joins a group and keeps what it is sent, in a process of its own.

`python receiver.py`, then JSON lines on stdin: {"do": "join" | "receive" | "read", …}; the start and each of
them are answered by one line. `read` opens what a trainer shared, as SGLang does; both leave a safetensors file.
"""

from __future__ import annotations

import base64
import json
import pickle
import sys
from datetime import timedelta
from typing import Any

import torch
from safetensors.torch import save_file
from torch.distributed import Backend, PrefixStore, TCPStore, broadcast
from torch.distributed.distributed_c10d import _new_process_group_helper, _world

TIMEOUT = timedelta(seconds=60)


class Rank:
    """The receiver's end of the group."""

    def __init__(self) -> None:
        self.group: Any = None

    def do(self, order: dict[str, Any]) -> None:
        match order["do"]:
            case "join":
                store = PrefixStore(order["group"], TCPStore(order["host"], order["port"], None, False, TIMEOUT))
                self.group, _ = _new_process_group_helper(
                    2, 1, [], Backend("gloo"), store, group_name=order["group"], timeout=TIMEOUT
                )
                _world.pg_group_ranks[self.group] = {0: 0, 1: 1}
            case "receive":
                received = {}
                for name, dtype, shape in order["specs"]:
                    received[name] = torch.empty(shape, dtype=getattr(torch, dtype))
                    broadcast(received[name], 0, group=self.group)
                save_file(received, order["file"])
            case "read":
                opened = dict(pickle.loads(base64.b64decode(order["payload"])))
                save_file({name: tensor.clone() for name, tensor in opened.items()}, order["file"])


def main() -> None:
    rank = Rank()
    print("null", flush=True)  # torch is there
    for line in sys.stdin:
        rank.do(json.loads(line))
        print("null", flush=True)


if __name__ == "__main__":
    main()

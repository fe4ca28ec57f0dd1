"""A trainer's first rank, as far as SGLang can see: sends a folder's tensors when told to, in a process of its own.

`python sender.py`, then JSON lines on stdin: {"do": "listen" | "join" | "specs" | "send" | "leave" | "read", …}; each
is answered by one line. `read` takes the next weights from a folder, as a training step would make them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from saocli.broadcast import Broadcaster, specs_of


class Rank:
    """The sender's state: its weights and its end of the group."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}
        self.caster: Broadcaster | None = None

    def do(self, order: dict[str, Any]) -> Any:
        match order.pop("do"):
            case "read":
                self.tensors = load_file(Path(order["folder"]) / "model.safetensors")
                return None
            case "listen":
                self.caster = Broadcaster("127.0.0.1", timeout_s=60)
                return [self.caster.host, self.caster.port]
            case "specs":
                return [[spec.name, spec.dtype, spec.shape] for spec in specs_of(self.tensors.items())]
            case "join":
                assert self.caster is not None
                return self.caster.join(**order)
            case "send":
                assert self.caster is not None
                return self.caster.send(list(self.tensors.values())[order["first"] : order["last"]])
            case "leave":
                assert self.caster is not None
                return self.caster.leave()


def main() -> None:
    rank = Rank()
    for line in sys.stdin:
        print(json.dumps({"result": rank.do(json.loads(line))}), flush=True)


if __name__ == "__main__":
    main()

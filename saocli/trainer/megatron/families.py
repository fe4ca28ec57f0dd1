"""mbridge's weight maps of the families that train, without the rest of mbridge.

Its packages import every family it knows, vision models among them: 0.9 s and 86 MiB of each trainer. So the two
packages are entered as empty ones, whose modules are imported by name.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from types import ModuleType


def _enter(name: str) -> None:
    """Make package `name` importable from, without running its `__init__`."""
    parent = sys.modules.get(name.rpartition(".")[0])
    spec = PathFinder.find_spec(name, parent.__path__ if parent is not None else None)
    if name in sys.modules or spec is None or spec.submodule_search_locations is None:
        return  # the import below says what is wrong
    package = ModuleType(name)
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules[name] = package


_enter("mbridge")
_enter("mbridge.models")

from mbridge.core import LLMBridge  # noqa: E402
from mbridge.models.llama import LLaMABridge  # noqa: E402
from mbridge.models.qwen2 import Qwen2Bridge  # noqa: E402
from mbridge.models.qwen3 import Qwen3Bridge  # noqa: E402

__all__ = ["BRIDGES", "LLMBridge"]

BRIDGES: dict[str, type[LLMBridge]] = {
    "LlamaForCausalLM": LLaMABridge,
    "Qwen2ForCausalLM": Qwen2Bridge,
    "Qwen3ForCausalLM": Qwen3Bridge,
}

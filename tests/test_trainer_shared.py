"""GPU memory that another process opens: named as SGLang's reader takes it apart. The rest needs a GPU."""

from __future__ import annotations

import inspect

from torch.multiprocessing import reductions

from saocli.trainer.megatron.shared import STORAGE_DEVICE, with_uuid


def test_the_gpu_is_named_where_torch_looks_for_its_index() -> None:
    parameters = list(inspect.signature(reductions.rebuild_cuda_tensor).parameters)
    assert parameters[STORAGE_DEVICE] == "storage_device"
    arguments = tuple(f"the {name}" for name in parameters)
    named = dict(zip(parameters, with_uuid(arguments, lambda index: f"UUID of {index}"), strict=True))
    assert named.pop("storage_device") == "UUID of the storage_device"
    assert named == {name: f"the {name}" for name in parameters if name != "storage_device"}

"""What a run will occupy, told from its conf and the model's sizes alone: memory by process, bytes on disk.

Counted from what the trainer allocates (`trainer/megatron/learner.py`). fp32: weights, gradients and two moments, 16
bytes a parameter. bf16: bf16 weights, fp32 masters, gradients and moments, 18. Activations are what autograd saves,
counted by type. The numbers in capitals were measured on a CPU (PyTorch 2.13, SGLang 0.5.23); the CUDA ones are
allowances that nothing has measured. `tests/test_doctor_memory.py` holds estimates to real peaks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from saocli.config.arms import facts
from saocli.config.engine import EngineConfig, EngineKind
from saocli.config.placement import launched
from saocli.config.run import RunConfig
from saocli.config.shape import Shape
from saocli.config.trainer import Device, DType, TrainerConfig

MIB = 2**20
BYTES = {DType.FP32: 4, DType.BF16: 2}

TRAINER_RUNTIME = 415 * MIB  # Python, torch, Megatron, transformers
ENGINE_RUNTIME = 400 * MIB  # Python, torch, transformers
TOKENIZER_PER_TOKEN = 1000  # a loaded tokenizer, per entry of its vocabulary
SERVICE = 480 * MIB  # gateway and conductor 340, two graders 60 each, the trainer's launcher 20
HEAP_SLACK = 1.2  # resident ÷ allocated of activations: the C library's heap keeps holes
SGLANG_RUNTIME = 2048 * MIB  # its processes on a CPU, shared pages counted once
SGLANG_PROCESSES = 3  # each with a tokenizer

CUDA_RUNTIME = 1024 * MIB  # context, kernels, communication buffers
SGLANG_CUDA = 3072 * MIB  # the same, and CUDA graphs

FIRST_KV = 128  # tokens; the embedded engine's cache doubles from there


class When(StrEnum):
    """When a colocated run holds a part on a GPU; other runs hold every part all the time."""

    ALWAYS = "always"
    TRAINING = "training"  # while the trainer steps
    SERVING = "serving"  # while the engine serves


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that takes memory."""

    what: str
    how: str
    bytes: int
    when: When = When.ALWAYS


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """What one process takes of one kind of memory; there are `copies` of it."""

    process: str  # trainer | engine | service
    device: Device
    copies: int
    parts: tuple[Part, ...]

    @property
    def bytes(self) -> int:
        """Of one copy."""
        return sum(part.bytes for part in self.parts)

    def held(self, phase: When) -> int:
        """Bytes of one copy in one phase of a colocated run."""
        return sum(part.bytes for part in self.parts if part.when in (When.ALWAYS, phase))


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A whole run."""

    footprints: tuple[Footprint, ...]
    weights_bytes: int  # exported weights of a release
    state_bytes: int  # trainer state of a checkpoint; 0 where none is ever saved
    kept: int  # releases on disk at once, the one in flight included
    colocated: bool = False  # trainer and engine share GPUs

    @property
    def ram_bytes(self) -> int:
        """Memory of the machine."""
        return sum(one.bytes * one.copies for one in self.footprints if one.device is Device.CPU)

    @property
    def disk_bytes(self) -> int:
        """Weights and states that retention keeps, and the ones being written."""
        return self.kept * (self.weights_bytes + self.state_bytes)

    @property
    def gpu_bytes(self) -> tuple[int, ...]:
        """What each GPU must hold, most first: a process each, or trainer and engine in turns."""
        on_gpus = [one for one in self.footprints if one.device is Device.GPU]
        if not self.colocated:
            return tuple(sorted((one.bytes for one in on_gpus for _ in range(one.copies)), reverse=True))
        return tuple(
            max(
                sum(one.held(phase) for one in on_gpus if one.copies > index) for phase in (When.TRAINING, When.SERVING)
            )
            for index in range(max(one.copies for one in on_gpus))
        )


def estimate(config: RunConfig, shape: Shape) -> Estimate:
    """What the run takes at its full context length, every slot in use."""
    arm = facts(config.arm.name)
    trains, critic = arm is None or arm.trains, arm is None or arm.critic
    saves = trains and config.releases.checkpoint_every > 0
    footprints = list(_engine(config.engine, shape, config.context_length))
    learned = shape.parameters + (shape.critic_parameters if critic else 0)
    if trains:
        footprints = [*_trainer(config.trainer, shape, config.context_length, critic=critic), *footprints]
    service = Part("runtime", "gateway, conductor, two graders, launcher", SERVICE)
    return Estimate(
        footprints=(
            *footprints,
            Footprint(process="service", device=Device.CPU, copies=1, parts=(service, _tokenizer(shape))),
        ),
        weights_bytes=shape.parameters * BYTES[config.trainer.dtype],
        state_bytes=learned * _state_per_parameter(config.trainer.dtype) if saves else 0,
        kept=config.releases.keep_last + 1,
        colocated=config.engine.colocate and trains,
    )


def _state_per_parameter(dtype: DType) -> int:
    """Bytes on disk: weights and two fp32 moments, in bf16 the fp32 masters too."""
    return 4 + 8 if dtype is DType.FP32 else 2 + 4 + 8


def _trainer(config: TrainerConfig, shape: Shape, context: int, *, critic: bool) -> Iterator[Footprint]:
    """Of one rank: every rank holds its share of the models whole, there is no distributed optimizer."""
    element, tp = BYTES[config.dtype], config.tensor_parallel
    learned = (shape.parameters + (shape.critic_parameters if critic else 0)) // tp
    bf16 = config.dtype is DType.BF16
    who = f"{'actor + critic' if critic else 'actor'}, {learned / 1e6:,.1f}M parameters{f' of {tp} shares' * (tp > 1)}"
    slack = HEAP_SLACK if config.device is Device.CPU else 1.0
    tokens = config.micro_batch_size * context
    one_pass = [
        Part(
            "activations",
            f"{config.micro_batch_size} × {context:,} tokens, {shape.layers} layers",
            int(slack * activation_bytes(shape, tokens=tokens, dtype=config.dtype, tensor_parallel=tp)),
            When.TRAINING,
        ),
        Part(
            "logits",
            f"{min(config.head_chunk, tokens):,} tokens × {shape.vocab:,}, softmax and gradient",
            min(config.head_chunk, tokens) * shape.vocab // tp * (8 + element * bf16),
            When.TRAINING,
        ),
        Part(
            "passing gradient",
            "the embedding's, before it is added up",
            shape.embedding // tp * element,
            When.TRAINING,
        ),
    ]
    # Megatron copies the gate and up weights and their moments while it writes them, one model after the other.
    saving = shape.gate_and_up // tp * _state_per_parameter(config.dtype) - sum(part.bytes for part in one_pass)
    fixed = [
        Part("weights", f"{who} × {element} B", learned * element),
        Part("gradients", "fp32", learned * 4),
        Part("optimizer", f"{'fp32 masters, ' * bf16}two fp32 moments", learned * (12 if bf16 else 8)),
    ]
    cpu = config.device is Device.CPU
    runtime = [Part("runtime", "Python, torch, Megatron", TRAINER_RUNTIME)]
    beyond = Part("saving", "copies beyond a pass, while a state is written", saving, When.TRAINING)
    copies = [beyond] if saving > 0 else []
    device = [*fixed, *one_pass, *copies, *(runtime if cpu else [Part("runtime", "CUDA (allowance)", CUDA_RUNTIME)])]
    yield Footprint(process="trainer", device=config.device, copies=config.ranks, parts=tuple(device))
    if not cpu:
        largest = max(shape.parameters, shape.critic_parameters) // tp * _state_per_parameter(config.dtype)
        staging = Part("saving", "one model's state on its way to the disk", largest)
        yield Footprint(process="trainer", device=Device.CPU, copies=config.ranks, parts=(*runtime, staging))


def activation_bytes(shape: Shape, *, tokens: int, dtype: DType, tensor_parallel: int = 1) -> int:
    """What autograd saves in the forward pass of a backbone over `tokens` tokens, in bytes.

    Per layer and token: the two norms' input and normalised input, in fp32 whatever the type (4h); their outputs (2h);
    queries, keys and values with keys and values repeated to all heads, and the context (4·heads·d); the feed-forward's
    gate and up, silu(gate), up once more and their product (5f); the rotary table (4d). With q/k norms also what these
    normalise and give. Attention itself keeps nothing of size tokens².
    """
    element = BYTES[dtype]
    split = 4 * shape.query + 5 * shape.ffn
    layer = 4 * shape.hidden * 4 + (2 * shape.hidden + split // tensor_parallel + 4 * shape.head_dim) * element
    if shape.qk_norm:
        layer += (3 if dtype is DType.FP32 else 2) * (shape.query + shape.key_value) * 4 // tensor_parallel
    return tokens * (shape.layers * layer + 2 * shape.hidden * 4)


def kv_bytes(shape: Shape, *, tokens: int, dtype: DType) -> int:
    """Keys and values of `tokens` tokens in all layers."""
    return tokens * shape.layers * shape.key_value * 2 * BYTES[dtype]


def _engine(config: EngineConfig, shape: Shape, context: int) -> Iterator[Footprint]:
    """Of one process, or one GPU: with tensor parallelism each has its share of weights and cache."""
    servers = launched(config)
    if servers == 0:
        return
    share = shape.parameters * BYTES[config.dtype] // config.tp
    weights = Part(
        "weights", f"{shape.parameters / 1e6:,.1f}M parameters × {BYTES[config.dtype]} B", share, When.SERVING
    )
    places = config.kv_tokens or config.slots * context
    cache = Part(
        "KV cache",
        f"{f'{config.kv_tokens:,} tokens' if config.kv_tokens else f'{config.slots} slots × {context:,} tokens'}, "
        f"{shape.layers} layers × {shape.kv_heads} heads × {shape.head_dim} × 2 × {BYTES[config.dtype]} B",
        kv_bytes(shape, tokens=places, dtype=config.dtype) // config.tp,
        When.SERVING,
    )
    gpu = config.device is Device.GPU
    if config.kind is EngineKind.EMBEDDED:
        before = kv_bytes(shape, tokens=config.slots * _capacity_before(context), dtype=config.dtype)
        growing = Part("KV cache, growing", "the smaller one that it is copied from", before)
        runtime = Part("runtime", "Python, torch, transformers", ENGINE_RUNTIME)
        # What fp32 weights were converted in stays in the heap: as much as the largest tensor, measured.
        loading = Part("loading", "the largest tensor in fp32", shape.embedding * 4)
        converted = (loading,) if config.dtype is DType.BF16 else ()
        parts = (weights, *converted, cache, growing, _tokenizer(shape), runtime)
        yield Footprint(process="engine", device=Device.CPU, copies=servers, parts=parts)
        return
    host = (_tokenizer(shape, SGLANG_PROCESSES), Part("runtime", "SGLang's processes", SGLANG_RUNTIME))
    graphs = (Part("runtime", "CUDA, graphs (allowance)", SGLANG_CUDA),)
    copies = config.tp * config.dp * servers
    parts = (weights, cache, *(graphs if gpu else host))
    yield Footprint(process="engine", device=config.device, copies=copies, parts=parts)
    if gpu:
        yield Footprint(process="engine", device=Device.CPU, copies=copies, parts=host)


def _capacity_before(context: int) -> int:
    """The embedded cache's capacity in tokens per slot before its last enlargement; 0 when the first one does."""
    if context <= FIRST_KV:
        return 0
    capacity = FIRST_KV
    while 2 * capacity < context:
        capacity *= 2
    return capacity


def _tokenizer(shape: Shape, processes: int = 1) -> Part:
    how = f"{shape.vocab:,} entries" + f" in {processes} processes" * (processes > 1)
    return Part("tokenizer", how, processes * shape.vocab * TOKENIZER_PER_TOKEN)

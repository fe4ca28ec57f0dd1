"""How rollouts become micro-batches: alignment, padding, dealing to ranks, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from saocli.errors import TrainerError
from saocli.trainer.megatron.data import action_masks, check, collate, deal, of_actions, to_rollouts
from saocli.types import Sample

CPU = torch.device("cpu")


def sample(
    prompt: tuple[int, ...], response: tuple[int, ...], mask: tuple[int, ...], temperature: float = 1.0
) -> Sample:
    return Sample(
        receipt="r7",
        prompt_ids=prompt,
        response_ids=response,
        action_mask=mask,
        rollout_logprobs=tuple(-0.5 * m for m in mask),
        score=1.0,
        temperature=temperature,
        group="g",
        versions=("v",),
        truncated=False,
        reported_at=0.0,
    )


SAMPLES = [sample((10, 11), (12, 13, 14), (1, 0, 1)), sample((20,), (21, 22), (1, 1), 0.5), sample((30,), (31,), (1,))]


def test_a_token_is_scored_by_the_output_before_it() -> None:
    micro = collate(SAMPLES, (0, 1), CPU)
    assert micro.ids.tolist() == [[10, 11, 12, 13, 14], [20, 21, 22, 0, 0]]
    # A model whose output at a position is the token it sees there.
    seen = micro.states(micro.ids.T.unsqueeze(-1).float())[:, 0]
    assert seen.tolist() == [11, 13, 20, 21]
    assert micro.targets.tolist() == [12, 14, 21, 22]
    assert micro.temperature.tolist() == [1.0, 1.0, 0.5, 0.5]


def test_action_tokens_and_rollouts_convert_back() -> None:
    masks = action_masks(SAMPLES, CPU)
    flat = torch.arange(1.0, 6.0)
    assert [t.tolist() for t in to_rollouts(flat, masks)] == [[1, 0, 2], [3, 4], [5]]
    assert torch.equal(of_actions(to_rollouts(flat, masks), masks), flat)


@pytest.mark.parametrize(("count", "ranks", "size"), [(7, 1, 2), (7, 2, 2), (1, 4, 8), (8, 3, 1)])
def test_every_rollout_is_dealt_once(count: int, ranks: int, size: int) -> None:
    shares = [deal(count, rank=rank, ranks=ranks, size=size) for rank in range(ranks)]
    assert sorted(member for share in shares for micro in share for member in micro) == list(range(count))
    assert all(1 <= len(micro) <= size for share in shares for micro in share)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt_ids": ()}, "no prompt"),
        ({"prompt_ids": (1,) * 8}, "11 tokens, the trainer takes 10"),
        ({"temperature": 0.0}, "temperature 0"),
        ({"prompt_ids": (99,)}, "vocabulary of 50"),
        ({"prompt_ids": (-1,)}, "vocabulary of 50"),
    ],
)
def test_samples_that_line_up_with_nothing_are_refused_by_receipt(changes: dict[str, object], words: str) -> None:
    check(SAMPLES, context_length=10, vocab_size=50)
    with pytest.raises(TrainerError, match="r7") as error:
        check([dataclasses.replace(SAMPLES[0], **changes)], context_length=10, vocab_size=50)
    assert words in error.value.message

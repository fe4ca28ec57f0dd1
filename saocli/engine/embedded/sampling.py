"""Drawing one token per row, and the log-probability that is recorded for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from saocli.types import Sampling


def draw(logits: Tensor, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> tuple[list[int], list[float]]:
    """Sample a token per row of `logits` [n, V] (fp32, penalties applied); returns ids [n] and log-probs [n] (nats).

    The log-prob is that of the row's whole softmax at its temperature, before top_k, top_p and min_p (as SGLang records
    it); temperature 0 takes the argmax and records its log-prob at temperature 1. A row with NaN logits gets NaN.

    Sampling inverts the cumulative distribution at `uniforms` [n] in [0, 1), in float64: so a row's token depends on
    its own logits and its own random number, whichever rows are beside it.
    """
    temperatures = torch.tensor([s.temperature or 1.0 for s in samplings])
    logp = torch.log_softmax(logits / temperatures[:, None], dim=-1)
    greedy = torch.tensor([s.temperature == 0 for s in samplings])
    ids = logp.argmax(dim=-1)
    if not greedy.all():
        probs = logp.exp()
        for row, sampling in enumerate(samplings):
            if sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0:
                probs[row] = restrict(probs[row], sampling)
        ids = torch.where(greedy, ids, _invert_cdf(probs, torch.tensor(uniforms, dtype=torch.float64)))
    chosen = logp.gather(1, ids[:, None])[:, 0]
    return ids.tolist(), chosen.tolist()


def _invert_cdf(probs: Tensor, uniforms: Tensor) -> Tensor:
    """The first index whose cumulative mass exceeds u·total, per row; never one of zero mass."""
    cdf = probs.double().cumsum(dim=-1)
    total = cdf[:, -1:].contiguous()
    ids = torch.searchsorted(cdf, uniforms[:, None] * total, right=True)
    last_with_mass = torch.searchsorted(cdf, total)
    return torch.minimum(ids, last_with_mass).clamp_(max=probs.shape[-1] - 1)[:, 0]


def restrict(probs: Tensor, sampling: Sampling) -> Tensor:
    """Zero what top_k, then top_p, then min_p leave out of `probs` [V]; not renormalised.

    top_p keeps the smallest set of most likely tokens whose mass reaches it (the token that crosses it included); min_p
    keeps tokens with at least min_p times the largest probability.
    """
    ordered, order = probs.sort(descending=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if sampling.top_k > 0:
        keep[sampling.top_k :] = False
    if sampling.top_p < 1:
        before = ordered.double().cumsum(0) - ordered
        # The tolerance is fp32's: 0.5 + 0.3 has reached 0.8.
        keep &= before < sampling.top_p - 1e-7
        keep[0] = True
    if sampling.min_p > 0:
        keep &= ordered >= sampling.min_p * ordered[0]
    return torch.zeros_like(probs).scatter_(0, order, ordered * keep)


def penalised(logits: Tensor, counts: Tensor, sampling: Sampling) -> Tensor:
    """Subtract OpenAI's penalties from `logits` [V], given how often each token was generated (`counts` [V])."""
    return logits - sampling.frequency_penalty * counts - sampling.presence_penalty * (counts > 0)

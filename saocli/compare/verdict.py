"""A comparison in sentences: what its differences are worth, and what in it to be careful about."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

from statsmodels.stats.proportion import proportions_ztest

from saocli.compare.power import ALPHA
from saocli.compare.results import ArmResult, Comparison
from saocli.compare.stats import SEED_LEVEL, Difference, difference, held_out_difference
from saocli.errors import RunError
from saocli.types import Operation

MUCH_DROPPED = 0.05  # share by which an arm must drop more than another to be told of


def differences(comparison: Comparison) -> list[Difference]:
    """Each trained arm less the base, then each less the ones named after it; pass rates follow the reward.

    Arms without a scored rollout have none.
    """
    scored = [arm for arm in comparison.arms if any(run.rollouts for run in arm.runs)]
    pairs = [(arm, comparison.base) for arm in scored if arm.trains and comparison.base in scored]
    pairs += combinations([arm for arm in scored if arm.trains], 2)
    temperatures = sorted({held.temperature for arm in scored for run in arm.runs for held in run.held_out})[::-1]
    found: list[Difference] = []
    for a, b in pairs:
        held_out = [held_out_difference(a, b, temperature=temperature) for temperature in temperatures]
        found += [difference(a, b), *(one for one in held_out if one)]
    return found


def headline(comparison: Comparison, found: Sequence[Difference]) -> list[str]:
    """The sentences on the mean reward of trained arms against each other; of a lone arm, against the base."""
    reward = [one for one in found if one.counted == "rollouts"]
    base = f" − {comparison.base.label}"
    between = [one for one in reward if not one.name.endswith(base)]
    return [sentence(one) for one in between or reward]


def sentence(found: Difference) -> str:
    """`sao − grpo_dis   +0.146  (bootstrap 95%: …, p 0.09, 3 seeds): not separated at this budget; …`"""
    seeds = f"{found.seeds} seed{'s' if found.seeds > 1 else ''}"
    interval = f"{signed(found.low, 2)} … {signed(found.high, 2)}"
    numbers = f"{found.name}   {signed(found.mean, 3)}  (bootstrap 95%: {interval}, p {p_value(found.p)}, {seeds})"
    note = f"; {found.note}" if found.note else ""
    return f"{numbers}: {_conclusion(found)}{note}."


def flags(comparison: Comparison) -> list[str]:
    """What makes a comparison unfair or empty, a sentence each; none where nothing does."""
    trained = [arm for arm in comparison.arms if arm.trains]
    return [
        *(text for arm in comparison.arms for text in _short_of_budget(arm, comparison)),
        *_dropped_more(trained),
        *(text for arm in trained for text in _mostly_noops(arm)),
    ]


def check_same_start(comparison: Comparison) -> None:
    """Raises RunError unless, on each seed, every arm started from the same weights."""
    for seed in comparison.seeds:
        digests = {arm.label: run.base_digest for arm in comparison.arms for run in arm.runs if run.seed == seed}
        if len(set(digests.values())) > 1:
            said = ", ".join(f"{label} {digest[:12]}" for label, digest in digests.items())
            raise RunError(
                f"the arms did not start from the same weights with seed {seed}: {said}",
                fix="give every arm the same model, and run the comparison anew",
            )


def outcome(found: Difference) -> str:
    """The conclusion in two words."""
    return "separated" if found.separated else "these runs differ" if found.runs_differ else "not separated"


def _conclusion(found: Difference) -> str:
    if found.separated:
        return "separated"
    if found.runs_differ:
        return f"these runs differ, the arms are not separated; {SEED_LEVEL} seeds could show it"
    # A budget that was there already, and showed nothing, is no advice.
    if found.needed_rollouts is None or found.needed_rollouts <= found.rollouts:
        return "not separated at this budget"
    needed, seeds = found.needed_rollouts, found.needed_seeds
    if seeds is not None:
        budget = f"{needed} {found.counted} per arm ({seeds} seeds)"
    else:
        budget = f"{_rounded_up(needed)} {found.counted} per arm"
        budget += f" (in {SEED_LEVEL} seeds or more)" * (found.seeds < SEED_LEVEL)
    return f"not separated at this budget; about {budget} would show a difference of {found.target:.2f}"


def _short_of_budget(arm: ArmResult, comparison: Comparison) -> Iterator[str]:
    scored = {run.seed: len(run.rollouts) for run in arm.runs}
    short = {seed: scored.get(seed, 0) for seed in comparison.seeds if scored.get(seed, 0) < comparison.rollouts}
    if short:
        where = ", ".join(f"{count} of {comparison.rollouts} with seed {seed}" for seed, count in short.items())
        yield f"{arm.label} has fewer scored rollouts than the budget: {where}"


def _dropped_more(arms: list[ArmResult]) -> Iterator[str]:
    counts = {arm.label: _dropped(arm) for arm in arms if any(run.rollouts for run in arm.runs)}
    if not counts:
        return
    least = min(counts, key=lambda label: counts[label][0] / counts[label][1])
    few, of_few = counts[least]
    for arm in arms:
        many, of_many = counts.get(arm.label, (0, 0))
        if not of_many or many / of_many - few / of_few < MUCH_DROPPED:
            continue
        if proportions_ztest([many, few], [of_many, of_few])[1] < ALPHA:
            reasons = Counter[str]()
            for run in arm.runs:
                reasons.update(run.dropped)
            yield (
                f"{arm.label} dropped {_share(many, of_many)} of its rollouts ({_listed(reasons)}), "
                f"{least} {_share(few, of_few)}: they trained on different parts of the same budget"
            )


def _dropped(arm: ArmResult) -> tuple[int, int]:
    """Reports that did not train, and scored rollouts."""
    scored = sum(len(run.rollouts) for run in arm.runs)
    return min(scored, sum(sum(run.dropped.values()) for run in arm.runs)), scored


def _mostly_noops(arm: ArmResult) -> Iterator[str]:
    steps = [step for run in arm.runs for step in run.steps]
    noops = sum(step["operation"] == Operation.NOOP for step in steps)
    if noops > len(steps) / 2:
        yield f"{noops} of {len(steps)} commits of {arm.label} were no-ops: it learned from the others alone"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%} ({part} of {whole})"


def _listed(reasons: Counter[str]) -> str:
    return ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in reasons.most_common())


def signed(value: float, decimals: int) -> str:
    """With its sign, but for a 0."""
    text = f"{value:+.{decimals}f}".replace("-", "−")
    return text[1:] if float(f"{value:.{decimals}f}") == 0 else text


def p_value(p: float) -> str:
    """To two digits, and no smaller than means anything."""
    return f"{p:.2g}" if p >= 0.001 else "< 0.001"


def _rounded_up(count: int) -> int:
    """To two digits: what is needed is an estimate."""
    unit = 10 ** max(0, math.floor(math.log10(count)) - 1)
    return math.ceil(count / unit) * unit

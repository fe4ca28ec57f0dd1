"""From arms and a budget to runs: the same checkpoint, prompts, budget and seeds for every arm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from saocli.compare.results import BASE
from saocli.config.arms import arm_names, facts
from saocli.config.confs import conf_dirs, groups
from saocli.config.load import Loaded, load_run
from saocli.config.run import RunConfig
from saocli.errors import ConfigError
from saocli.tasks.sets import is_procedural, load_tasks
from saocli.types import Problem

# Tuning runs on a seed that no comparison has.
TUNING_SEED = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What was asked for; written to disk, and enough to go on with it."""

    conf: str
    arms: tuple[str, ...]
    overrides: tuple[str, ...]
    sweep: tuple[str, ...] = ()  # each one value of the swept key, as an override
    conf_dir: str | None = None
    command: str = ""  # the line that asked for it


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """One run of one arm and seed."""

    label: str
    arm: str
    seed: int
    settings: tuple[str, ...]  # the overrides that make it this arm's
    loaded: Loaded
    tries: str | None = None  # the swept override, of a tuning run

    @property
    def folder(self) -> str:
        return f"{self.label}-seed{self.seed}"

    @property
    def title(self) -> str:
        """What tells it from the arm's other runs."""
        return f"seed {self.seed}" if self.tries is None else f"tries {self.tries.rpartition('.')[2]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Every run of a comparison, composed once, but for those whose learning rate a sweep has yet to choose."""

    request: Request
    config: RunConfig  # of the conf itself, with the user's overrides
    labels: tuple[str, ...]  # base first
    untuned: tuple[PlannedRun, ...]
    tuning: Mapping[str, tuple[PlannedRun, ...]]  # by label; none for the base

    @property
    def seeds(self) -> tuple[int, ...]:
        return _seeds(self.config)

    def arm(self, label: str) -> str:
        return _arm(label)

    def runs(self, chosen: Mapping[str, str]) -> list[PlannedRun]:
        """Seed by seed, so that an interrupted comparison has whole ones; `chosen`: label → the value it won with."""
        return _runs(self.request, self.config, self.labels, chosen) if chosen else [*self.untuned]

    def tuning_runs(self, label: str) -> list[PlannedRun]:
        """One run per swept value, all on one seed apart; none for the base."""
        return [*self.tuning.get(label, ())]


def make_plan(request: Request) -> Plan:
    """Check the request and every run in it, before anything starts. Raises ConfigError."""
    known = _known_arms(request)
    for arm in request.arms:
        if arm not in known:
            raise ConfigError(f"no arm named '{arm}'", fix=f"there are: {' · '.join(known)}")
    config = load_run(request.conf, request.overrides, conf_dir=_folder(request)).config
    trained = [arm for arm in request.arms if arm != BASE]
    seen: Counter[str] = Counter()
    labels = [BASE]
    for arm in trained:
        seen[arm] += 1
        labels.append(arm if seen[arm] == 1 else f"{arm}#{seen[arm]}")
    untuned = _runs(request, config, labels, {})
    tuning = {
        label: tuple(
            replace(_run(request, config, label, TUNING_SEED, [value], evaluate=False), tries=value)
            for value in request.sweep
        )
        for label in labels
        if label != BASE
    }
    for run in chain(untuned, *tuning.values()):
        _check_budget(run)
    _check_prompts(untuned)
    return Plan(request=request, config=config, labels=tuple(labels), untuned=tuple(untuned), tuning=tuning)


def _seeds(config: RunConfig) -> tuple[int, ...]:
    return tuple(range(config.seed, config.seed + config.compare.seeds))


def _arm(label: str) -> str:
    return label.partition("#")[0]


def _runs(request: Request, config: RunConfig, labels: Sequence[str], chosen: Mapping[str, str]) -> list[PlannedRun]:
    return [
        _run(request, config, label, seed, [chosen[label]] if label in chosen else [])
        for seed in _seeds(config)
        for label in labels
    ]


def _run(
    request: Request, config: RunConfig, label: str, seed: int, extra: Sequence[str], *, evaluate: bool = True
) -> PlannedRun:
    arm = _arm(label)
    settings = (*_choice(arm, request), *_shape(arm, config), *extra)
    overrides = [
        *request.overrides,
        *settings,
        *_budget(config),
        f"seed={seed}",
        "tasks.eval.at=[-1]",  # the base after its attempts too: equal draws
        *([] if evaluate else ["tasks.eval.samples=0"]),
        "gateway.port=0",
    ]
    loaded = load_run(request.conf, overrides, conf_dir=_folder(request))
    return PlannedRun(label=label, arm=arm, seed=seed, settings=settings, loaded=loaded)


def _known_arms(request: Request) -> list[str]:
    options = groups(conf_dirs(_folder(request)))["arm"]
    return sorted({*options, *arm_names()})


def _folder(request: Request) -> Path | None:
    return Path(request.conf_dir) if request.conf_dir else None


def _choice(arm: str, request: Request) -> list[str]:
    """An arm with a file in conf/arm/ brings its own numbers; a registered one without takes the conf's."""
    options = groups(conf_dirs(_folder(request)))["arm"]
    return [f"arm={arm}" if arm in options else f"arm.name={arm}"]


def _shape(arm: str, config: RunConfig) -> list[str]:
    if arm == BASE:
        return ["tasks.pacing=none"]
    known = facts(arm)
    return [*(config.compare.group if known and known.grouped else config.compare.single)]


def _budget(config: RunConfig) -> list[str]:
    """A procedural set is drawn to the budget; a written-down one is attempted as often as the budget allows."""
    rollouts, tasks = config.compare.rollouts, config.tasks
    if is_procedural(tasks):
        if rollouts % tasks.attempts:
            raise ConfigError(
                f"compare.rollouts is {rollouts}, not a multiple of tasks.attempts, {tasks.attempts}",
                fix="every arm attempts every problem equally often: change one of them",
            )
        return [f"tasks.count={rollouts // tasks.attempts}"]
    problems = len(load_tasks(tasks, seed=config.seed))
    if rollouts % problems:
        raise ConfigError(
            f"compare.rollouts is {rollouts}, not a multiple of the {problems} problems of the conf",
            fix="every arm attempts every problem equally often: change compare.rollouts or tasks.count",
        )
    return [f"tasks.attempts={rollouts // problems}"]


def _check_budget(run: PlannedRun) -> None:
    """Rollouts that never fill a batch would be scored and not trained."""
    config = run.loaded.config
    rollouts, batch = config.compare.rollouts, config.batch_size
    left = rollouts % batch
    if run.arm != BASE and left:
        raise ConfigError(
            f"compare.rollouts is {rollouts}, not a multiple of batch_size, {batch}, of arm {run.label}: "
            f"{left} rollouts would never make a step",
            fix=f"the next possible budget is compare.rollouts={rollouts - left + batch}",
        )


def _check_prompts(runs: Sequence[PlannedRun]) -> None:
    """Arms are compared on the same problems, or not at all."""
    first: dict[int, list[tuple[Problem, int]]] = {}
    for run in runs:
        tasks = run.loaded.config.tasks
        attempts = [(problem, tasks.attempts) for problem in load_tasks(tasks, seed=run.seed)]
        if first.setdefault(run.seed, attempts) != attempts:
            raise ConfigError(
                f"arm {run.label} would play other problems than {BASE} on seed {run.seed}",
                fix="compare.single and compare.group may shape batches, not change the tasks",
            )

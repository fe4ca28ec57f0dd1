"""One tree of errors. Every message says what happened, where, and what to do about it.

SaoError
├── ConfigError          a conf or an override is wrong                      exit 2
├── RunError             the run failed                                      exit 1
│   ├── ProcessDied      engine or trainer died or never became ready
│   ├── EngineError      the engine refused or could not serve a request
│   │   ├── EngineRestarting   its process died and is being started again
│   │   └── EngineLost         what it holds is not known any more
│   ├── TrainerError     the trainer refused or could not do a step
│   └── StoreError       the run directory or its database could not be used
├── Unreachable          no service answers                                  exit 3
├── Refused              the service said no                                 exit 4
└── MachineError         this machine lacks what the conf needs              exit 5
"""

from __future__ import annotations


class SaoError(Exception):
    """Root of the tree; `fix` is a sentence that says what to do."""

    exit_code = 1

    def __init__(self, message: str, *, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n       {self.fix}" if self.fix else self.message


class ConfigError(SaoError):
    """A configuration that cannot run; names the keys."""

    exit_code = 2


class RunError(SaoError):
    """The run failed."""

    exit_code = 1


class ProcessDied(RunError):
    """A child process ended or never became ready; carries the last lines of its log and the log's path."""


class EngineError(RunError):
    """The rollout engine refused or failed a request."""


class ContextLengthExceeded(EngineError):
    """Prompt plus requested tokens do not fit the engine's context."""


class EngineRestarting(EngineError):
    """The engine's process died and is being started again: the same request can be sent again in a moment."""


class EngineLost(EngineError):
    """What weights the engine holds is not known any more: it must be started again."""


class TrainerError(RunError):
    """The trainer refused or failed a command."""


class StoreError(RunError):
    """The run directory or its database could not be used."""


class Unreachable(SaoError):
    """No service answers at that address."""

    exit_code = 3


class Refused(SaoError):
    """The service refused the request."""

    exit_code = 4


class MachineError(SaoError):
    """This machine lacks what the conf needs."""

    exit_code = 5

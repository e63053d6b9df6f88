"""Every error that pairgate raises on purpose, with the exit code that the CLI answers.

    PairgateError                 1   unexpected, or no better class
    ├── InvalidInput              2   a value, file or option is wrong; says where and what to do
    │   ├── PolicyError           2   a policy file does not load
    │   └── NotFound              2   no such line, version, slice, profile or policy
    ├── EvidenceMissing          12   there is no evaluation that this promotion may stand on
    │   └── EvidenceStale        12   there is one, but it was made for something else or is too old
    ├── Conflict                 13   someone else moved the line
    ├── IntegrityError           14   bytes are missing or differ from their digest
    ├── Refused                  15   pinned, incompatible, unapproved, unsupported
    ├── Unavailable              16   database, engine or optional package cannot be reached
    │   └── MissingExtra         16   names the extra to install
    └── InvalidEvaluation        17   the replay broke or its counts do not add up

Exit codes 10 (FAIL) and 11 (INCONCLUSIVE) are verdicts, not errors: see `pairgate.domain.verdict`.
"""

from __future__ import annotations


class PairgateError(Exception):
    """Base of all; `hint` says what to do next and is printed on a line of its own."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n{self.hint}"


class InvalidInput(PairgateError):
    exit_code = 2


class PolicyError(InvalidInput):
    pass


class NotFound(InvalidInput):
    pass


class EvidenceMissing(PairgateError):
    exit_code = 12


class EvidenceStale(EvidenceMissing):
    pass


class Conflict(PairgateError):
    exit_code = 13


class IntegrityError(PairgateError):
    exit_code = 14


class Refused(PairgateError):
    exit_code = 15


class Unavailable(PairgateError):
    exit_code = 16


class MissingExtra(Unavailable):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs the package {package!r}, which is not installed",
            hint=f"install it with: pip install 'pairgate[{extra}]'",
        )


class InvalidEvaluation(PairgateError):
    exit_code = 17


def require(condition: object, message: str, *, hint: str | None = None) -> None:
    """Raise `InvalidInput` unless `condition` holds; for `__post_init__` of domain types."""
    if not condition:
        raise InvalidInput(message, hint=hint)

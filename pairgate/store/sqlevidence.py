"""Attempts, evaluations with their checks, and approvals."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, insert, select, update

from pairgate.domain.records import Approval, EvidenceRow
from pairgate.errors import NotFound
from pairgate.store import schema as s
from pairgate.store.codec import dump_json, load_json
from pairgate.store.sqlbase import SqlBase, repeatable
from pairgate.store.sqllines import enqueue, read_head

if TYPE_CHECKING:
    from pairgate.domain.evidence import Evaluation
    from pairgate.domain.verdict import Check, Verdict

_EVIDENCE_COLUMNS = [s.evaluation.c[f.name] for f in fields(EvidenceRow)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvaluation:
    """Evidence, decoded. `row` says what it is bound to."""

    row: EvidenceRow
    evaluation: Evaluation
    verdict: Verdict


class Evidence(SqlBase):
    """Append-only: an evaluation is written once and never changed."""

    @repeatable
    def start_attempt(
        self,
        line: str,
        version: int,
        pair_digest: str,
        policy_digest: str,
        slice_digest: str,
        at: str,
        *,
        once: bool = False,
    ) -> int:
        """k of this attempt: one more than the attempts of pair, policy and slice that count.
        With `once`, the attempt that was started at exactly this time is this one.

        Attempt k tests at alpha · 2^−k, so that all of them together stay under alpha; that holds
        with attempts at the same time and with released ones, because each gets a k at least as
        large as its rank among those that count.
        """
        family = (pair_digest, policy_digest, slice_digest)
        with self._write() as connection:
            # Two attempts of one pair take turns, on whatever lines they are.
            connection.execute(
                select(s.pair.c.digest).where(s.pair.c.digest == pair_digest).with_for_update()
            )
            read_head(connection, line)
            counting = (*_of_family(*family), s.attempt.c.released.is_(False))
            if once:
                same = (s.attempt.c.line == line, s.attempt.c.started_at == at)
                begun = connection.scalar(select(s.attempt.c.number).where(*counting, *same))
                if begun is not None:
                    return begun
            n_counted = connection.scalar(
                select(func.count()).select_from(s.attempt).where(*counting)
            )
            k = (n_counted or 0) + 1
            connection.execute(
                insert(s.attempt).values(
                    line=line,
                    version=version,
                    pair_digest=pair_digest,
                    policy_digest=policy_digest,
                    slice_digest=slice_digest,
                    number=k,
                    started_at=at,
                )
            )
            return k

    def release_attempt(
        self, pair_digest: str, policy_digest: str, slice_digest: str, attempt: int
    ) -> None:
        """This attempt was no look (ERROR, or ended before any): it does not count."""
        c = s.attempt.c
        with self._write() as connection:
            newest = connection.scalar(
                select(func.max(c.id)).where(
                    *_of_family(pair_digest, policy_digest, slice_digest),
                    c.number == attempt,
                    c.released.is_(False),
                )
            )
            connection.execute(update(s.attempt).where(c.id == newest).values(released=True))

    def n_families(
        self, pair_digest: str, policy_digest: str, days: float, at: str | None = None
    ) -> int:
        """On how many slices this pair was tried under this policy in the `days` before `at`."""
        end = datetime.now(UTC) if at is None else datetime.fromisoformat(at)
        since = (end - timedelta(days=days)).isoformat(timespec="microseconds")
        c = s.attempt.c
        with self._read() as connection:
            found = connection.scalar(
                select(func.count(c.slice_digest.distinct())).where(
                    c.pair_digest == pair_digest,
                    c.policy_digest == policy_digest,
                    c.released.is_(False),
                    c.started_at >= since.replace("+00:00", "Z"),
                )
            )
        return found or 0

    @repeatable
    def save_evaluation(
        self, evaluation: Evaluation, verdict: Verdict, at: str, folder: str
    ) -> str:
        """Store evidence and verdict and leave a message for the mirrors, in one transaction.

        Idempotent: the same evaluation is stored once. Returns its digest.
        """
        digest = evaluation.digest
        with self._write() as connection:
            known = select(s.evaluation.c.digest).where(s.evaluation.c.digest == digest)
            if connection.scalar(known) is not None:
                return digest
            connection.execute(
                insert(s.evaluation).values(evaluation_values(evaluation, verdict, at, folder))
            )
            checks = [check_values(digest, i, c) for i, c in enumerate(verdict.checks)]
            if checks:
                connection.execute(insert(s.check), checks)
            payload = {"at": at, "digest": digest, "outcome": verdict.outcome.value}
            payload["version"] = f"{evaluation.line}@{evaluation.version}"
            enqueue(connection, evaluation.line, "evaluation", payload, at)
        return digest

    def evaluations(self, line: str, version: int | None = None) -> list[EvidenceRow]:
        """The evidence of a line, or of one version, oldest first; nothing is decoded."""
        with self._read() as connection:
            return read_evaluations(connection, line, version)

    def evaluation(self, digest: str) -> StoredEvaluation:
        """Decoded evidence; raises `NotFound`."""
        from pairgate.domain.evidence import Evaluation
        from pairgate.domain.verdict import Verdict

        with self._read() as connection:
            query = select(s.evaluation).where(s.evaluation.c.digest == digest)
            row = connection.execute(query).mappings().first()
        if row is None:
            raise NotFound(f"there is no evaluation {digest}")
        return StoredEvaluation(
            row=EvidenceRow(**{f.name: row[f.name] for f in fields(EvidenceRow)}),
            evaluation=load_json(Evaluation, row["document"]),
            verdict=load_json(Verdict, row["verdict"]),
        )

    @repeatable
    def add_approval(self, approval: Approval) -> None:
        """Once per evaluation, name and actor; again it changes nothing."""
        c = s.approval.c
        with self._write() as connection:
            known = connection.scalar(
                select(c.id).where(
                    c.evaluation_digest == approval.evaluation_digest,
                    c.name == approval.name,
                    c.actor == approval.actor,
                )
            )
            if known is None:
                values = {f.name: getattr(approval, f.name) for f in fields(Approval)}
                connection.execute(insert(s.approval).values(values))

    def approvals(self, evaluation_digest: str) -> list[Approval]:
        with self._read() as connection:
            return read_approvals(connection, evaluation_digest=evaluation_digest)


def read_evaluations(
    connection: Connection, line: str, version: int | None = None
) -> list[EvidenceRow]:
    """The evidence of a line, or of one of its versions, oldest first."""
    c = s.evaluation.c
    query = select(*_EVIDENCE_COLUMNS).where(c.line == line).order_by(c.created_at, c.digest)
    if version is not None:
        query = query.where(c.version == version)
    return [EvidenceRow(**row) for row in connection.execute(query).mappings()]


def read_approvals(
    connection: Connection, *, line: str | None = None, evaluation_digest: str | None = None
) -> list[Approval]:
    """Those of a line, or of one evaluation, oldest first."""
    c = s.approval.c
    query = select(*(c[f.name] for f in fields(Approval))).order_by(c.id)
    if line is not None:
        query = query.where(c.line == line)
    if evaluation_digest is not None:
        query = query.where(c.evaluation_digest == evaluation_digest)
    return [Approval(**row) for row in connection.execute(query).mappings()]


def _of_family(pair_digest: str, policy_digest: str, slice_digest: str) -> tuple[Any, ...]:
    c = s.attempt.c
    return (
        c.pair_digest == pair_digest,
        c.policy_digest == policy_digest,
        c.slice_digest == slice_digest,
    )


def evaluation_values(
    evaluation: Evaluation, verdict: Verdict, at: str, folder: str
) -> dict[str, Any]:
    """One row per evaluation: documents, and what they are bound to."""
    binding = evaluation.binding
    bound = {f.name: getattr(binding, f.name) for f in fields(binding)}
    return bound | {
        "digest": evaluation.digest,
        "line": evaluation.line,
        "version": evaluation.version,
        "attempt": evaluation.attempt,
        "alpha": evaluation.alpha,
        "outcome": verdict.outcome.value,
        "recommendation": verdict.recommendation,
        "folder": folder,
        "measured_at": evaluation.provenance.started_at,
        "created_at": at,
        "document": dump_json(evaluation),
        "verdict": dump_json(verdict),
    }


def check_values(digest: str, position: int, check: Check) -> dict[str, Any]:
    """One row per check, flat, for people with SQL. A Missing has no value."""
    observed = check.observed
    return {
        "evaluation_digest": digest,
        "position": position,
        "rule": check.rule,
        "scope": str(check.scope),
        "mode": check.mode.value,
        "outcome": check.outcome.value,
        "metric": check.metric,
        "value": getattr(observed, "value", None),
        "low": getattr(observed, "low", None),
        "high": getattr(observed, "high", None),
        "n": getattr(observed, "n", None),
        "threshold": check.threshold,
        "reason": check.reason,
    }

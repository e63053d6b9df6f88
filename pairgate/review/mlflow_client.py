"""A connection to MLflow that is quiet, without telemetry, and leaves this process as it was."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from pairgate.errors import MissingExtra, Unavailable

if TYPE_CHECKING:
    from mlflow import MlflowClient

# Two quick retries instead of MLflow's minutes: the outbox comes back by itself.
_ENVIRONMENT = {
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


@contextmanager
def connected(tracking_uri: str) -> Iterator[MlflowClient]:
    """A client; inside, this URI is also MLflow's global one, because its model registry asks the
    global client for logged models. All of it is put back afterwards."""
    kept = {name: os.environ.get(name) for name in (*_ENVIRONMENT, "MLFLOW_TRACKING_URI")}
    os.environ.update(_ENVIRONMENT)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mlflow = _import_mlflow()
            before = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None
            mlflow.set_tracking_uri(tracking_uri)
            try:
                yield mlflow.MlflowClient()
            except (mlflow.exceptions.MlflowException, SQLAlchemyError, OSError) as error:
                raise _unavailable(tracking_uri, error) from error
            finally:
                mlflow.set_tracking_uri(before)
    finally:
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _import_mlflow() -> Any:
    try:
        import mlflow
    except ImportError:
        raise MissingExtra("mlflow", "mlflow") from None
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return mlflow


def _unavailable(tracking_uri: str, error: Exception) -> Unavailable:
    lines = str(error).strip().splitlines()
    cause = lines[0] if lines else repr(error)
    return Unavailable(
        without_password(f"MLflow at {tracking_uri} did not take the record: {cause}"),
        hint="nothing else depends on it; repair later with `pairgate mlflow sync --all`, or turn "
        "it off with PAIRGATE_MLFLOW=off",
    )


def without_password(text: str) -> str:
    """The text with user and password taken out of every URL; it is stored and shown to others."""
    return re.sub(r"(?<=://)[^/@\s]*@", "", text)


@contextmanager
def existing_is_fine() -> Iterator[None]:
    """Someone else may make the same thing between our look and our call."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise

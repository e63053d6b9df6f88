"""Rows of Parquet files and Hugging Face datasets, as the JSON text of one record each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

from pairgate.errors import InvalidInput, MissingExtra, Unavailable
from pairgate.traffic.lines import Raw
from pairgate.traffic.report import BadRecord, Place, Reason

_ROWS_AT_ONCE = 256
HUB_PREFIX = "hf:"


def read_parquet(path: Path, label: str) -> Iterator[Raw]:
    """Every row; columns that are null are left out of its record."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            batches = file.iter_batches(batch_size=_ROWS_AT_ONCE)
            yield from _records((row for b in batches for row in _rows(b)), label)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InvalidInput(f"{path} cannot be read as Parquet: {reason}") from error


def read_dataset(source: str, label: str, *, config: str | None, split: str) -> Iterator[Raw]:
    """A dataset folder of `save_to_disk`, any folder or script-free repository that
    `datasets.load_dataset` takes, or `hf:OWNER/NAME` on the Hugging Face hub, streamed."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra("datasets", "slices") from error
    name = source.removeprefix(HUB_PREFIX)
    folder = Path(name)
    try:
        if (folder / "state.json").exists() or (folder / "dataset_dict.json").exists():
            found = datasets.load_from_disk(name)
            rows = found[split] if isinstance(found, dict) else found
        else:
            rows = datasets.load_dataset(name, config, split=split, streaming=True)
        yield from _records(rows, label)
    except (ConnectionError, TimeoutError) as error:
        raise Unavailable(
            f"the dataset {source} cannot be reached: {error}",
            hint="download it and give its folder to --from",
        ) from error
    except Exception as error:  # of pandas, pyarrow, httpx, …: the library wraps them or not
        if type(error).__module__.startswith(("httpx", "requests")):
            raise Unavailable(f"the dataset {source} cannot be reached: {error}") from error
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise InvalidInput(
            f"the dataset {source} (split {split!r}) cannot be read: {first}",
            hint="choose with --split and --config",
        ) from error


def _rows(batch: Any) -> Iterator[dict[str, Any] | BadRecord]:
    """The rows of a record batch; one that Python has no values for is a bad record."""
    import pyarrow as pa

    try:
        yield from batch.to_pylist()
        return
    except (ValueError, OverflowError) as error:
        if isinstance(error, pa.ArrowException):
            raise
    for i in range(batch.num_rows):
        try:
            yield from batch.slice(i, 1).to_pylist()
        except UnicodeDecodeError as error:
            yield BadRecord(Reason.NOT_UTF8, f"byte {error.object[error.start]:#04x}")
        except (ValueError, OverflowError) as error:
            yield BadRecord(Reason.OUT_OF_RANGE, str(error))


def _records(rows: Iterable[dict[str, Any] | BadRecord], label: str) -> Iterator[Raw]:
    for number, row in enumerate(rows, start=1):
        place = Place(source=label, line=number)
        try:
            if isinstance(row, BadRecord):
                raise row
            yield Raw(place=place, text=_text(row))
        except BadRecord as bad:
            yield Raw(place=place, bad=bad)


def _text(row: dict[str, Any]) -> str:
    """Canonical JSON of a row. A table has every column in every row, so null means absent."""
    try:
        return json.dumps(
            _without_null(row),
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
            allow_nan=False,
            default=_plain,
        )
    except ValueError as error:
        raise BadRecord(Reason.NOT_FINITE, str(error)) from error


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_null(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_null(v) for v in value]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return int(value) if value == int(value) else float(value)
    raise BadRecord(Reason.WRONG_TYPE, f"a value of type {type(value).__name__}")

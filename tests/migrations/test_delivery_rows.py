"""Deliveries that waited before they had rows of their own."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config

from pairgate.domain.records import Delivery
from pairgate.store.sql import SqlRegistry
from pairgate.store.sqlengine import make_engine, writing
from pairgate.store.sqlschema import migrations_folder, upgrade


def test_what_was_delivered_is_not_delivered_again(tmp_path: Path) -> None:
    engine = make_engine(f"sqlite:///{tmp_path / 'old.db'}")
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    config.set_main_option("path_separator", "os")
    with writing(engine) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0004")
        connection.exec_driver_sql("INSERT INTO line (name, created_at) VALUES ('code', 't')")
        for message_id, delivered_at, done in ((1, "t", "mlflow"), (2, None, "mlflow pointer")):
            connection.exec_driver_sql(
                "INSERT INTO outbox (id, line, kind, payload, created_at, delivered_at, done)"
                " VALUES (?, 'code', 'head', '{}', 't', ?, ?)",
                (message_id, delivered_at, done),
            )
    upgrade(engine)
    registry = SqlRegistry(engine)
    (waiting,) = registry.pending()
    assert waiting.id == 2
    assert waiting.deliveries == (
        Delivery(target="mlflow", state="done"),
        Delivery(target="pointer", state="done"),
    )
    assert waiting.delivery("webhook") == Delivery(target="webhook")
    registry.close()

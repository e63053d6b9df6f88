"""The registry's Alembic migrations; installed as `pairgate_migrations`."""

"""What every racer would import for itself, imported once before they fork."""

import alembic.command
import mlflow.store.tracking.sqlalchemy_store
import psycopg
import sqlalchemy.dialects.postgresql.psycopg
import sqlalchemy.orm

sqlalchemy.orm.configure_mappers()

__all__ = ["alembic", "mlflow", "psycopg", "sqlalchemy"]

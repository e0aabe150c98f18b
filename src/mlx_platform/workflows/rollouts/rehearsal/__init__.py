"""A rollback performed on purpose, under test load, and measured."""

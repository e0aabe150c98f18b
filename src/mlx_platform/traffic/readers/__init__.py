"""Readers of traffic logs, one format a module, all yielding the same record."""

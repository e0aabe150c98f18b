"""Serving while the registry cannot be asked."""

import os
import signal
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from mlx_platform.core.errors import UnavailableError
from mlx_platform.registry.cache import PackageCache
from mlx_platform.workflows.context import make_context
from mlx_platform.workflows.last_known import open_last_known
from mlx_platform.workflows.serve import serve


@pytest.fixture
def context(project):
    settings = project.settings
    return make_context(replace(settings, registry=replace(settings.registry, timeout=0.2)))


@contextmanager
def locked(project):
    """Somebody holds the registry's database for themselves."""
    with closing(sqlite3.connect(project.database, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        yield
        holder.execute("ROLLBACK")


def test_a_version_is_served_as_it_was_known_while_the_registry_is_away(project, context, caplog):
    project.catalog.move("digits", "production", 2, kind="promote", actor="ada")
    with open_last_known(context, "digits@production") as (subject, warnings):
        assert (subject.ref, warnings) == ("digits/2", ())
        digest = subject.package.digest

    served = []
    with locked(project):
        result = serve(
            context,
            "digits@production",
            device="cpu",
            port=0,
            on_ready=lambda addresses: (served.append(addresses), os.kill(os.getpid(), signal.SIGTERM)),
        )

    assert [(each.model, each.version, each.digest) for each in served] == [("digits", "2", digest)]
    (warning,) = result.warnings
    assert "The registry cannot be asked" in warning
    assert "digits@production is digits/2, as it was at" in warning
    assert warning in caplog.messages


def test_what_was_never_known_cannot_be_served_without_the_registry(project, context):
    with open_last_known(context, "digits/1"):
        pass
    with locked(project), pytest.raises(UnavailableError), open_last_known(context, "digits/2"):
        pass


def test_nothing_is_served_whose_bytes_are_not_here(project, context, own_home):
    with open_last_known(context, "digits/1") as (subject, _):
        root = subject.package.root
    root.rename(root.with_name("gone"))
    with locked(project), pytest.raises(UnavailableError), open_last_known(context, "digits/1"):
        pass


@pytest.mark.parametrize("change", [{"name": "../x"}, {"number": "1"}, {"digest": "0"}, {"time": None}, None])
def test_a_note_that_makes_no_sense_is_no_note(project, context, monkeypatch, change):
    with open_last_known(context, "digits/1"):
        pass
    recall = PackageCache.recall
    monkeypatch.setattr(
        PackageCache, "recall", lambda self, key: None if change is None else recall(self, key) | change
    )
    with locked(project), pytest.raises(UnavailableError), open_last_known(context, "digits/1"):
        pass


def test_an_answer_of_the_registry_counts_more_than_what_was_known(project, context):
    project.catalog.move("digits", "production", 2, kind="promote", actor="ada")
    with open_last_known(context, "digits@production"):
        pass
    project.catalog.move("digits", "production", 3, kind="promote", actor="ada")
    with open_last_known(context, "digits@production") as (subject, _):
        assert subject.ref == "digits/3"
    with locked(project), open_last_known(context, "digits@production") as (subject, _):
        assert subject.ref == "digits/3"

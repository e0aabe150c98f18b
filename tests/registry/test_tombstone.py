from mlx_platform.registry.tombstone import Tombstone, tombstones

STONE = Tombstone(
    number=2,
    label="digits-20261130-002",
    digest="d" * 64,
    source="models:/m-1",
    actor="ada",
    reason="leaked data",
    time="2026-11-30T12:00:00Z",
)


def test_what_was_written_is_read_back_from_the_tags_of_the_model() -> None:
    assert tombstones({"team": "vision", **STONE.as_tags()}) == {2: STONE}
    assert STONE.sentence("digits") == ("digits/2 was deleted by ada on 2026-11-30T12:00:00Z: leaked data.")


def test_tags_of_somebody_else_break_nothing() -> None:
    tags = {
        "mlx.deleted.3": "no JSON",
        "mlx.deleted.4": '{"actor": ["x"], "reason": "\\u001b[31m"}',
        "mlx.deleted.x": "{}",
        "mlx.deleted.²": "{}",
        "mlx.deleted.12345678901": "{}",
    }

    found = tombstones(tags)

    assert set(found) == {3, 4}
    assert found[3].actor == ""
    assert "\x1b" not in found[4].sentence("digits")

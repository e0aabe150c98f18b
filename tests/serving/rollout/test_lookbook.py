from mlx_platform.serving.rollout.lookbook import KEPT, Lookbook, read_looks


def test_looks_read_back_in_order(tmp_path):
    book = Lookbook(tmp_path / "rollouts")
    book.add("r1", {"look": 1})
    book.add("r1", {"look": 2})
    book.add("r2", {"look": 1})
    assert read_looks(tmp_path / "rollouts", "r1") == ({"look": 1}, {"look": 2})
    assert read_looks(tmp_path / "rollouts", "r3") == ()


def test_only_the_newest_looks_are_kept(tmp_path):
    book = Lookbook(tmp_path)
    for number in range(2 * KEPT + 1):
        book.add("r1", {"look": number})
    found = read_looks(tmp_path, "r1")
    assert len(found) == KEPT + 1
    assert found[-1] == {"look": 2 * KEPT}


def test_a_writer_goes_on_where_another_one_died(tmp_path):
    Lookbook(tmp_path).add("r1", {"look": 1})
    with (tmp_path / "r1.jsonl").open("ab") as file:
        file.write(b'{"look": 2, "verd\n')
    Lookbook(tmp_path).add("r1", {"look": 3})
    assert read_looks(tmp_path, "r1") == ({"look": 1}, {"look": 3})


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    book = Lookbook(tmp_path / "file")
    book.add("r1", {})
    book.add("r1", {})
    assert len(caplog.records) == 1

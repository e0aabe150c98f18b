import os
import pickle
import zipfile

import joblib
import numpy as np
import pytest

from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.inference.intake import copy_external, copy_plain, source_kind, take_folder


class Payload:
    """Leaves a mark when anything unpickles it."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (os.mkdir, (self.mark,))


@pytest.mark.parametrize("suffix", [".pkl", ".joblib", ".skops", ".onnx", ".npy", ".bin"])
@pytest.mark.parametrize("compress", [None, 0, "zlib", "gzip", "bz2", "xz"])
def test_a_pickle_under_any_name_is_refused_and_never_run(tmp_path, suffix, compress):
    path = tmp_path / f"model{suffix}"
    payload = Payload(str(tmp_path / "mark"))
    if compress is None:
        path.write_bytes(pickle.dumps(payload))
    else:
        joblib.dump(payload, path, compress=compress)

    with pytest.raises(UsageError) as caught:
        source_kind(path)
    assert "skops" in caught.value.hint
    assert not (tmp_path / "mark").exists()


def test_a_pickle_of_the_first_protocol_is_no_skops_file(tmp_path):
    (tmp_path / "model.skops").write_bytes(pickle.dumps([1], protocol=0))

    with pytest.raises(UsageError):
        source_kind(tmp_path / "model.skops")


def test_other_formats_are_called_by_their_name(tmp_path):
    np.save(tmp_path / "model.npy", np.zeros(3))
    with pytest.raises(UsageError, match="NumPy array"):
        source_kind(tmp_path / "model.npy")

    with zipfile.ZipFile(tmp_path / "model.skops", "w") as archive:
        archive.writestr("data.pkl", b"")
    with pytest.raises(UsageError, match="no model that can be taken"):
        source_kind(tmp_path / "model.skops")


def test_what_can_be_taken_is_told_apart(logistic_onnx, mlp_skops):
    assert source_kind(logistic_onnx) == "onnx"
    assert source_kind(mlp_skops) == "skops"


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    (folder / "w.bin").write_bytes(b"weights")
    (folder / "sub" / "w.bin").write_bytes(b"more")
    (tmp_path / "secret").write_bytes(b"secret")
    return folder


def test_external_tensors_are_copied_once_with_their_folders(source, tmp_path):
    copy_external(["w.bin", "sub/w.bin", "w.bin"], source, tmp_path / "out", cap=7)

    assert (tmp_path / "out" / "sub" / "w.bin").read_bytes() == b"more"
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "out" / "w.bin").stat().st_mode & 0o133 == 0


@pytest.mark.parametrize(
    "name",
    ["../secret", "sub/../../secret", "/etc/passwd", "", "sub", "model.toml", "assets/w.bin", "a\\b", "C:/w"],
)
def test_external_tensors_stay_inside(source, tmp_path, name):
    with pytest.raises(UsageError):
        copy_external([name], source, tmp_path / "out", cap=100)
    assert not (tmp_path / "out").exists() or not any(
        path.is_file() for path in (tmp_path / "out").rglob("*")
    )


def test_links_are_not_copied(source, tmp_path):
    (source / "soft").symlink_to(tmp_path / "secret")
    os.link(tmp_path / "secret", source / "hard")
    (source / "folder").symlink_to(tmp_path)
    for name, message in (("soft", "link"), ("hard", "hard link"), ("folder/secret", "symbolic link")):
        with pytest.raises(UsageError, match=message):
            copy_external([name], source, tmp_path / "out", cap=100)


def test_a_file_that_the_user_named_may_have_other_names_but_is_no_soft_link(source, tmp_path):
    os.link(source / "w.bin", tmp_path / "cache")

    assert copy_plain(source / "w.bin", tmp_path / "copy", cap=100, links=True) == 7
    (tmp_path / "soft").symlink_to(source / "w.bin")
    with pytest.raises(UsageError, match="link"):
        copy_plain(tmp_path / "soft", tmp_path / "copy2", cap=100, links=True)


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(UsageError, match="no regular file"):
        copy_plain(tmp_path / "pipe", tmp_path / "copy", cap=100)


def test_the_size_is_capped_and_a_missing_file_is_not_found(source, tmp_path):
    with pytest.raises(UsageError, match="7 bytes, more than 6"):
        copy_plain(source / "w.bin", tmp_path / "copy", cap=6)
    with pytest.raises(NotFoundError):
        copy_plain(source / "absent", tmp_path / "copy", cap=6)


@pytest.fixture
def folder(tmp_path, matmul_onnx):
    folder = tmp_path / "folder"
    (folder / "assets" / "deep").mkdir(parents=True)
    (folder / "assets" / "deep" / "a.json").write_text("[]")
    (folder / "net.onnx").write_bytes(matmul_onnx.read_bytes())
    (folder / "README.md").write_text("#")
    return folder


def test_a_folder_gives_what_a_package_holds_and_names_the_rest(folder, tmp_path):
    out = tmp_path / "out"
    out.mkdir()

    assert take_folder(folder, out, cap=1 << 20) == ["README.md"]
    names = sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
    assert names == ["assets/deep/a.json", "model.onnx"]


def test_a_folder_with_two_networks_is_ambiguous(folder, tmp_path):
    (folder / "other.onnx").write_bytes(b"")

    with pytest.raises(UsageError, match=r"it holds net\.onnx, other\.onnx"):
        take_folder(folder, tmp_path / "out", cap=1 << 20)


@pytest.mark.parametrize("name", ["assets/link", "assets/deep/link", "model.toml", "golden.jsonl"])
def test_a_folder_with_links_is_refused(folder, tmp_path, name):
    (folder / name).symlink_to("/etc/passwd")

    with pytest.raises(UsageError, match="link"):
        take_folder(folder, tmp_path / "out", cap=1 << 20)


def test_linked_assets_are_refused(folder, tmp_path):
    (folder / "assets").rename(tmp_path / "assets")
    (folder / "assets").symlink_to(tmp_path / "assets")
    with pytest.raises(UsageError, match="link"):
        take_folder(folder, tmp_path / "out", cap=1 << 20)


def test_the_number_of_assets_is_capped(folder, tmp_path):
    (folder / "assets" / "b.json").write_text("[]")

    with pytest.raises(UsageError, match="more than 1"):
        take_folder(folder, tmp_path / "out", cap=1 << 20, max_files=1)

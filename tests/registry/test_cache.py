import os
import resource
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from projects import Project

from mlx_platform.core.errors import IntegrityError, UnavailableError, UsageError
from mlx_platform.inference.package import Package, open_package, seal
from mlx_platform.registry.cache import Opener, PackageCache, copy_package, folder_opener


@pytest.fixture
def package(project: Project) -> Package:
    return project.package(1)


@pytest.fixture
def cache(tmp_path: Path) -> PackageCache:
    return PackageCache(tmp_path / "cache", tmp_path / "fallback")


def forbidden(path: str) -> int:
    raise AssertionError(path)


def counted(opener: Opener, opened: list[str]) -> Opener:
    def open_file(path: str) -> int:
        opened.append(path)
        return opener(path)

    return open_file


def test_a_package_is_copied_once_and_found_from_then_on(cache: PackageCache, package: Package) -> None:
    assert cache.find(package.digest) is None

    copy = cache.put(package.digest, folder_opener(package.root))

    assert copy.digest == package.digest
    assert cache.find(package.digest) == copy
    assert copy.root != package.root


def test_only_what_the_manifest_lists_is_read_and_copied(cache: PackageCache, package: Package) -> None:
    (package.root / "extra.txt").write_text("not listed")
    opened: list[str] = []

    copy = cache.put(package.digest, counted(folder_opener(package.root), opened))

    assert sorted(opened) == sorted(["manifest.json", *(entry.path for entry in package.manifest.files)])
    assert not (copy.root / "extra.txt").exists()


def test_the_cache_is_nobody_elses(cache: PackageCache, package: Package) -> None:
    before = os.umask(0)
    try:
        copy = cache.put(package.digest, folder_opener(package.root))
    finally:
        os.umask(before)

    modes = {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in [copy.root, *copy.root.rglob("*")]}
    assert modes == {0}


def test_a_damaged_entry_heals_itself(cache: PackageCache, package: Package) -> None:
    copy = cache.put(package.digest, folder_opener(package.root))
    copy.model_path.write_bytes(b"x" * copy.model_path.stat().st_size)
    assert cache.find(package.digest) is None

    healed = cache.put(package.digest, folder_opener(package.root))

    assert healed.model_path.read_bytes() == package.model_path.read_bytes()
    assert cache.find(package.digest) == healed


def test_a_changed_byte_in_the_registry_is_refused_and_leaves_nothing(
    cache: PackageCache, package: Package, tmp_path: Path
) -> None:
    content = bytearray(package.model_path.read_bytes())
    content[-1] ^= 1
    package.model_path.write_bytes(content)

    with pytest.raises(IntegrityError) as caught:
        cache.put(package.digest, folder_opener(package.root))

    assert caught.value.details["expected"] != caught.value.details["actual"]
    assert list((tmp_path / "cache" / "packages").iterdir()) == []


def test_a_package_that_was_sealed_anew_is_not_the_one_registered(
    cache: PackageCache, package: Package
) -> None:
    digest = package.digest
    (package.root / "model.toml").write_text(package.root.joinpath("model.toml").read_text() + "\n")
    seal(package.root)

    with pytest.raises(IntegrityError, match="as registered"):
        cache.put(digest, folder_opener(package.root))


@pytest.mark.parametrize("kind", ["missing", "link", "fifo", "folder", "longer", "linked folder"])
def test_a_file_that_is_no_plain_file_is_refused(cache: PackageCache, package: Package, kind: str) -> None:
    path, digest = package.model_path, package.digest
    kept = path.read_bytes()
    outside = package.root.parent / "outside"
    path.unlink()
    match kind:
        case "link":
            outside.write_bytes(kept)
            path.symlink_to(outside)
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "longer":
            path.write_bytes(kept + b"x")
        case "linked folder":
            path.write_bytes(kept)
            package.root.rename(outside)
            package.root.symlink_to(outside / "nowhere")

    with pytest.raises(IntegrityError):
        cache.put(digest, folder_opener(package.root))


def test_a_linked_folder_inside_a_package_is_refused(
    cache: PackageCache, project: Project, tmp_path: Path
) -> None:
    package = project.variant("v")
    (package.root / "assets").rename(tmp_path / "elsewhere")
    (package.root / "assets").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(IntegrityError):
        cache.put(package.digest, folder_opener(package.root))


def test_a_cache_that_cannot_be_written_falls_back(package: Package, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = PackageCache(tmp_path / "file", tmp_path / "fallback")

    copy = cache.put(package.digest, folder_opener(package.root))

    assert copy.root.is_relative_to(tmp_path / "fallback")
    assert cache.find(package.digest) == copy


def test_without_any_place_to_write_the_setting_is_named(package: Package, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = PackageCache(tmp_path / "file", tmp_path / "file" / "below")

    with pytest.raises(UnavailableError) as caught:
        cache.put(package.digest, folder_opener(package.root))

    assert "MLX_CACHE_DIR" in caught.value.hint


def test_copying_takes_the_listed_files_along(package: Package, tmp_path: Path) -> None:
    copy_package(package, tmp_path / "out")

    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"manifest.json", *(entry.path for entry in package.manifest.files)}


def test_a_copy_that_finds_no_room_leaves_nothing(package: Package, tmp_path: Path) -> None:
    target = tmp_path / "copies" / "out"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(UsageError, match=r"cannot be copied to .*out: File too large"):
            copy_package(package, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert list(target.parent.iterdir()) == []
    copy_package(package, target)
    assert open_package(target).digest == package.digest
    assert list(target.parent.iterdir()) == [target]


def test_a_copy_below_a_file_is_refused(package: Package, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match="cannot be copied"):
        copy_package(package, tmp_path / "file" / "out")


def test_another_copy_that_was_faster_is_as_good(
    cache: PackageCache, package: Package, tmp_path: Path
) -> None:
    copy = cache.put(package.digest, folder_opener(package.root))
    opened: list[str] = []

    again = cache.put(package.digest, counted(folder_opener(package.root), opened))

    assert again == copy
    shutil.rmtree(package.root)
    assert cache.find(package.digest) == copy


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b"\xff", b"1", b"[" * 9999, b'{"a": "' + b"x" * (1 << 20) + b'"}']
)
def test_a_note_that_cannot_be_read_is_none(cache: PackageCache, tmp_path: Path, content: bytes) -> None:
    key = "a" * 64
    cache.keep(key, {"digest": "x"})
    assert cache.recall(key) == {"digest": "x"}

    (tmp_path / "cache" / "foreign" / f"{key}.json").write_bytes(content)

    assert cache.recall(key) is None


@pytest.mark.parametrize(
    "damage",
    [
        "flipped",
        "truncated",
        "longer",
        "missing",
        "missing manifest",
        "linked file",
        "linked folder",
        "dangling link",
        "file in its place",
        "writable file",
        "writable folder",
        "somebody else's",
    ],
)
def test_an_entry_heals_itself_whatever_happened_to_it(
    cache: PackageCache, package: Package, tmp_path: Path, damage: str
) -> None:
    entry = cache.put(package.digest, folder_opener(package.root)).root
    _damage(entry, damage, tmp_path / "elsewhere")
    assert cache.find(package.digest) is None

    healed = cache.put(package.digest, folder_opener(package.root))

    assert healed.root == entry
    assert cache.find(package.digest) == healed
    assert {path.name for path in entry.parent.iterdir()} == {package.digest}
    _damage(entry, damage, tmp_path / "once more")
    with pytest.raises(IntegrityError):
        cache.put(package.digest, folder_opener(tmp_path / "the store is gone as well"))


def _damage(entry: Path, damage: str, elsewhere: Path) -> None:  # noqa: C901, PLR0912 - one case per damage
    model = entry / "model.onnx"
    content = model.read_bytes()
    match damage:
        case "flipped":
            model.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "truncated":
            model.write_bytes(content[:-1])
        case "longer":
            model.write_bytes(content + b"x")
        case "missing":
            model.unlink()
        case "missing manifest":
            (entry / "manifest.json").unlink()
        case "linked file":
            model.rename(elsewhere)
            model.symlink_to(elsewhere)
        case "linked folder":
            entry.rename(elsewhere)
            entry.symlink_to(elsewhere)
        case "dangling link":
            shutil.rmtree(entry)
            entry.symlink_to(elsewhere)
        case "file in its place":
            shutil.rmtree(entry)
            entry.write_text("")
        case "writable file":
            model.chmod(0o666)
        case "writable folder":
            entry.chmod(0o777)
        case "somebody else's":
            if os.geteuid() != 0:
                pytest.skip("only root can give a file away")
            os.chown(model, 12345, 12345)


def test_a_cache_on_a_full_disk_falls_back(package: Package, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(full)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        copy = PackageCache(full, tmp_path / "fallback").put(package.digest, folder_opener(package.root))
        assert copy.root.is_relative_to(tmp_path / "fallback")
        with pytest.raises(UnavailableError, match="No space left") as caught:
            PackageCache(full, full / "below").put(package.digest, folder_opener(package.root))
        assert "MLX_CACHE_DIR" in caught.value.hint
        assert not [path for path in full.rglob("*") if path.is_file()]
    finally:
        subprocess.run(["umount", str(full)], check=True)

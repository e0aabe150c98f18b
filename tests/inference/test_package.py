import hashlib
import json
import os
import shutil

import orjson
import pytest

from mlx_platform.core.errors import IntegrityError, NotFoundError, UsageError
from mlx_platform.inference.package import open_package, seal, with_file


@pytest.fixture
def root(logistic_package, tmp_path):
    shutil.copytree(logistic_package.root, tmp_path / "package")
    return tmp_path / "package"


def reseal(root, change):
    """Change the manifest's document and write it in canonical form."""
    document = orjson.loads((root / "manifest.json").read_bytes())
    change(document)
    (root / "manifest.json").write_bytes(orjson.dumps(document, option=orjson.OPT_SORT_KEYS))


def test_the_digest_is_that_of_the_manifests_bytes(root):
    package = open_package(root)

    assert package.digest == hashlib.sha256((root / "manifest.json").read_bytes()).hexdigest()
    assert package.size == sum(path.stat().st_size for path in root.iterdir() if path.name != "manifest.json")


@pytest.mark.parametrize("name", ["model.onnx", "model.toml", "golden.jsonl", "MLmodel", "environment.lock"])
def test_one_flipped_bit_of_any_file_is_found(root, name):
    content = bytearray((root / name).read_bytes())
    content[len(content) // 2] ^= 1
    (root / name).write_bytes(content)

    with pytest.raises(IntegrityError, match=f"{name} is not what was sealed") as caught:
        open_package(root)
    assert caught.value.details["actual"] == hashlib.sha256(content).hexdigest()
    open_package(root, verify=False)


@pytest.mark.parametrize("verify", [True, False])
def test_a_file_that_is_missing_or_cut_is_found_even_without_reading(root, verify):
    content = (root / "model.onnx").read_bytes()
    (root / "model.onnx").write_bytes(content[:-1])
    with pytest.raises(IntegrityError, match="bytes, not the"):
        open_package(root, verify=verify)

    (root / "model.onnx").unlink()
    with pytest.raises(IntegrityError, match=r"model\.onnx of the package is missing"):
        open_package(root, verify=verify)


def test_files_that_the_manifest_does_not_list_are_ignored(root):
    digest = open_package(root).digest
    (root / "registered_model_meta").write_text("model_name: digits")

    package = open_package(root)

    assert package.digest == digest
    assert not package.has("registered_model_meta")
    with pytest.raises(NotFoundError):
        package.read_json("registered_model_meta")


def test_links_are_not_followed(root, tmp_path):
    shutil.move(root / "model.onnx", tmp_path / "elsewhere.onnx")
    (root / "model.onnx").symlink_to(tmp_path / "elsewhere.onnx")
    with pytest.raises(IntegrityError, match="symbolic link"):
        open_package(root)


def test_a_linked_folder_is_not_followed(root, tmp_path):
    (root / "assets").mkdir()
    (root / "assets" / "a.txt").write_text("a")
    seal(root)
    shutil.move(root / "assets", tmp_path / "assets")
    (root / "assets").symlink_to(tmp_path / "assets")

    with pytest.raises(IntegrityError, match="symbolic link"):
        open_package(root)


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "a/../../x", "a//b", "C:\\x", "a\nb", "", "x" * 1025]
)
def test_a_manifest_with_a_hostile_path_is_refused(root, path):
    reseal(root, lambda document: document["files"].update({path: {"size": 1, "sha256": "0" * 64}}))

    with pytest.raises(IntegrityError, match="lists what no package has"):
        open_package(root)


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.update(format=2),
        lambda document: document.pop("files"),
        lambda document: document.update(generated=["model.onnx"]),
        lambda document: document["files"]["MLmodel"].update(size="1"),
        lambda document: document.update(extra=1),
        lambda document: document["files"].pop("model.toml"),
    ],
)
def test_a_manifest_of_another_form_is_refused(root, change):
    reseal(root, change)

    with pytest.raises(IntegrityError):
        open_package(root)


def test_a_manifest_that_is_not_canonical_is_refused(root):
    manifest = root / "manifest.json"
    manifest.write_text(json.dumps(orjson.loads(manifest.read_bytes()), indent=1))

    with pytest.raises(IntegrityError, match="canonical"):
        open_package(root)


def test_a_folder_without_a_manifest_is_no_package(tmp_path):
    with pytest.raises(NotFoundError, match=r"manifest\.json"):
        open_package(tmp_path)


def test_the_content_digest_knows_the_model_and_not_the_circumstances(root):
    before = open_package(root)
    assert before.digest != before.content_digest

    package = with_file(before, "baseline.json", b"{}")
    package = with_file(package, "environment.lock", b"other")
    package = with_file(package, "golden.jsonl", (root / "golden.jsonl").read_bytes()[:0])
    assert package.content_digest == before.content_digest
    assert package.digest != before.digest

    package = with_file(package, "model.toml", (root / "model.toml").read_bytes() + b"\n")
    assert package.content_digest != before.content_digest


def test_golden_cases_of_a_person_are_content(root):
    before = open_package(root)
    case = orjson.loads((root / "golden.jsonl").read_bytes().splitlines()[0])

    package = with_file(before, "golden.jsonl", orjson.dumps(case | {"generated": False}))

    assert package.content_digest != before.content_digest


def test_a_file_can_be_added_and_read_back(root):
    package = with_file(open_package(root), "baseline.json", b'{"a": 1}')

    assert package.read_json("baseline.json") == {"a": 1}
    assert package.baseline_path == root / "baseline.json"
    assert open_package(root).digest == package.digest


def test_a_json_file_that_is_none_is_an_integrity_error(root):
    with pytest.raises(IntegrityError, match="no JSON"):
        with_file(open_package(root), "baseline.json", b"{").read_json("baseline.json")


@pytest.mark.parametrize("name", ["manifest.json", "../x", "/x"])
def test_not_every_name_can_be_added(root, name):
    with pytest.raises(UsageError):
        with_file(open_package(root), name, b"")


def test_only_plain_files_are_sealed(root):
    os.mkfifo(root / "pipe")

    with pytest.raises(UsageError, match="'pipe' cannot be part"):
        seal(root)

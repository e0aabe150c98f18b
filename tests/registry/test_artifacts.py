from pathlib import Path

import pytest
from hostile import LOCATIONS

from mlx_platform.core.errors import IntegrityError
from mlx_platform.registry.artifacts import ArtifactRoot, artifact_root, locate

MODEL = f"m-{'a' * 32}"
SOURCE = f"models:/{MODEL}"


@pytest.fixture
def root(tmp_path: Path) -> ArtifactRoot:
    (tmp_path / "store" / "models" / MODEL / "artifacts").mkdir(parents=True)
    return artifact_root("store", tmp_path / "store")


def folder(root: ArtifactRoot) -> Path:
    assert root.folder
    return root.folder / "models" / MODEL / "artifacts"


def test_a_folder_below_the_root_is_taken(root: ArtifactRoot) -> None:
    assert locate(str(folder(root)), SOURCE, root, server=False) == folder(root)
    assert locate(folder(root).as_uri(), SOURCE, root, server=False) == folder(root)


@pytest.mark.parametrize("location", LOCATIONS)
@pytest.mark.parametrize("server", [False, True])
def test_a_location_outside_of_the_root_is_refused(root: ArtifactRoot, location: str, server: bool) -> None:
    with pytest.raises(IntegrityError) as caught:
        locate(location, SOURCE, root, server=server)

    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    "tail", ["/..", "/../../../../etc", "/%2e%2e/x", "/%252e%252e/x", "/x\\..\\y", "/x\x00", ""]
)
def test_a_way_out_of_the_root_is_refused_wherever_it_starts(root: ArtifactRoot, tail: str) -> None:
    with pytest.raises(IntegrityError):
        locate(f"{root.folder}{tail}", SOURCE, root, server=False)


@pytest.mark.parametrize("source", [*LOCATIONS, "ftp://x/y", "runs:/x", f"{SOURCE}/../x", f"{SOURCE}\n"])
def test_a_source_that_is_none_is_refused_though_the_location_is_fine(
    root: ArtifactRoot, source: str
) -> None:
    with pytest.raises(IntegrityError):
        locate(str(folder(root)), source, root, server=False)


def test_a_version_that_mlflow_copied_is_found(root: ArtifactRoot) -> None:
    assert locate(str(folder(root)), "models:/digits/3", root, server=False) == folder(root)


def test_a_link_that_leads_out_of_the_root_is_refused(root: ArtifactRoot, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    assert root.folder
    (root.folder / "link").symlink_to(tmp_path / "outside")

    with pytest.raises(IntegrityError):
        locate(f"{root.folder}/link", SOURCE, root, server=False)


def test_a_registry_that_was_moved_as_a_whole_is_found(root: ArtifactRoot) -> None:
    before = f"/old/place/models/{MODEL}/artifacts"

    assert locate(before, SOURCE, root, server=False) == folder(root)


def test_whatever_characters_the_users_own_folder_has_are_fine(tmp_path: Path) -> None:
    store = tmp_path / "a #1 $ 100% folder"
    (store / "models" / MODEL / "artifacts").mkdir(parents=True)
    own = artifact_root("x", store)

    assert locate(str(folder(own)), SOURCE, own, server=False) == folder(own)


def test_a_remote_store_needs_a_server_or_the_settings_to_name_it(root: ArtifactRoot) -> None:
    remote = artifact_root("s3://bucket/mlx", Path("unused"))

    assert locate("s3://bucket/mlx/1/models", SOURCE, remote, server=False) == "s3://bucket/mlx/1/models"
    assert locate("mlflow-artifacts:/1/models", SOURCE, root, server=True) == "mlflow-artifacts:/1/models"
    with pytest.raises(IntegrityError):
        locate("s3://other/mlx/1", SOURCE, remote, server=False)
    with pytest.raises(IntegrityError):
        locate("s3://bucket/mlx/1", SOURCE, root, server=False)

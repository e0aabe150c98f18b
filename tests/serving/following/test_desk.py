import shutil

import pytest

from mlx_platform.core.errors import NotFoundError, UnavailableError
from mlx_platform.serving.following.desk import Desk
from mlx_platform.serving.following.followed import Followed


def test_another_registry_in_the_place_of_the_one_that_was_followed_is_not_believed(
    project, template, tmp_path
):
    desk = Desk(Followed("digits", "production", project.settings), "cpu")
    assert desk.look().holders == {"production": 1}

    away = project.database.rename(tmp_path / "away.db")
    with pytest.raises(NotFoundError, match="no registry"):
        desk.look()
    shutil.copy(template / "mlx.db", project.database)
    with pytest.raises(UnavailableError, match="not the registry that was followed"):
        desk.look()
    away.replace(project.database)

    assert desk.look().holders == {"production": 1}

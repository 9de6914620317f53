"""One world of containers for all tests here. Mark users with `xdist_group("containers")`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.provision import ProvisionError
from harness.provision.images import images
from harness.worlds.containers.world import ContainerWorld


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerWorld]:
    try:
        images()
    except ProvisionError as error:
        pytest.skip(str(error))
    with ContainerWorld(tmp_path_factory.mktemp("containers")) as entered:
        yield entered

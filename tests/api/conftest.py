from collections.abc import Iterator

import pytest
from api_rig import Served


@pytest.fixture
def served() -> Iterator[Served]:
    server = Served()
    yield server
    server.close()

"""A store to publish to, for the tests of one file."""

import pytest
from s3_server import serving


@pytest.fixture(scope="module")
def server():
    with serving() as server:
        yield server

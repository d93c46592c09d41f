"""`calserve serve` as a user starts it: a process, a port, a model."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_rig import Server, Start, calserve, environment


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts servers, each with a lock folder of its own; whatever still runs at the end is stopped by id."""
    started: list[Server] = []

    def start(model: Path | None, *args: str) -> Server:
        package = () if model is None else ("--model", str(model))
        command = calserve("serve", *package, "--port", "0", "--log-level", "warning", *args)
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(tmp_path_factory.mktemp("runtime")),
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://[\d.]+:\d+", line)
        assert found, (line, process.communicate(timeout=60))
        server = Server(process, found.group(), line)
        started.append(server)
        return server

    yield start
    for server in started:
        if server.process.poll() is None:
            server.stop()


@pytest.fixture(scope="session")
def exact_server(start_server: Start, exact_package: Path) -> Server:
    return start_server(exact_package)


@pytest.fixture
def tiny_server(start_server: Start, tiny_package: Path) -> Iterator[Server]:
    server = start_server(tiny_package)
    yield server
    if server.process.poll() is None:
        server.stop()

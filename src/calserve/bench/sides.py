"""Processes of a bench run: started together, asked in turn, stopped by id."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from calserve.bench.workload import Work
from calserve.stopping import child_environment

_CLI = (sys.executable, "-m", "calserve.cli")


class BenchError(Exception):
    """A side did not start or did not answer; its own last words are in the message."""


@dataclass(slots=True)
class SideProcess:
    """One worker. Answers strictly alternate with requests."""

    name: str
    process: subprocess.Popen[str]
    log: IO[bytes]

    @classmethod
    def start(cls, name: str, model: Path, *extra: str) -> SideProcess:
        command = [*_CLI, "bench-worker", name, "--model", str(model), *extra]
        log = _log_file(name)
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=child_environment())
        side = cls(name, process, log)
        side._read()
        return side

    def ask(self, work: Work) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(work.as_json()) + "\n")
        self.process.stdin.flush()
        answer = self._read()
        if "error" in answer:
            raise BenchError(f"{self.name}: {answer['error']}")
        return answer

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        self.log.close()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise BenchError(f"{self.name} ended with code {self.process.wait()}: {_last_words(self.log)}")


@dataclass(slots=True)
class ServerProcess:
    """`calserve serve` as a user starts it, on a free port."""

    process: subprocess.Popen[bytes]
    port: int
    log: IO[bytes]

    @classmethod
    def start(cls, model: Path, *extra: str) -> ServerProcess:
        log = _log_file("server")
        command = [*_CLI, "serve", "--model", str(model), "--port", "0", *extra]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, env={**child_environment(), "PYTHONUNBUFFERED": "1"}
        )
        assert process.stdout is not None
        for raw in process.stdout:
            found = re.search(rb"http://[\d.]+:(\d+)", raw)
            if found:
                return cls(process, int(found.group(1)), log)
        raise BenchError(f"the server ended with code {process.wait()}: {_last_words(log)}")

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            text: str = answer.read().decode()
        return text

    def resident_bytes(self) -> int:
        """VmRSS of the server, bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(found.group(1)) * 1024 if found else 0

    def stop(self) -> int:
        self.process.terminate()
        code = self.process.wait(30)
        self.log.close()
        return code


def _log_file(name: str) -> IO[bytes]:
    return tempfile.NamedTemporaryFile(prefix=f"calserve-bench-{name}-", suffix=".log")


def _last_words(log: IO[bytes]) -> str:
    log.seek(0)
    return " ".join(log.read()[-500:].decode(errors="replace").split())

"""The processes of a bench end with it, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).parents[2] / "src"
# A side that is at work for ever, started as the bench starts its own; `main` ties it to its parent.
PARENT = '''
import os, subprocess, sys, time
from calserve.bench import sides
from calserve.stopping import child_environment

child = """
import calserve.cli.app

def work():
    print("{}", flush=True)
    while True:
        pass

calserve.cli.app.app = work
calserve.cli.main()
"""
sides._CLI = (sys.executable, "-c", child)
side = sides.SideProcess.start("raw", sides.Path("nowhere"))
print(side.process.pid, flush=True)
time.sleep(600)
'''


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_worker_of_a_bench_ends_with_it_in_the_middle_of_its_work(number: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)}
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    stat = Path(f"/proc/{worker}/stat")
    assert stat.exists()
    parent.send_signal(number)
    parent.wait(30)
    ends = time.monotonic() + 30
    while stat.exists() and " Z " not in stat.read_text():
        assert time.monotonic() < ends, "the worker outlived the bench"
        time.sleep(0.01)

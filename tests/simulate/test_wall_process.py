"""The soak's own supervisor and its record, with programs that are no server."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from calserve.simulate.wall import SoakError, WallOptions
from calserve.simulate.wall.faults import choose_plan
from calserve.simulate.wall.plot import svg
from calserve.simulate.wall.report import JSON_NAME, SVG_NAME, Record, WallReport
from calserve.simulate.wall.samples import Sample, process_sizes
from calserve.simulate.wall.server import ServerProcess, serve_command

READY = "print('it is ready on http://127.0.0.1:4321 after 1 s', flush=True)\n"


def program(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "program.py"
    path.write_text(f"import sys, time, pathlib\ncount = pathlib.Path({str(tmp_path / 'count')!r})\n{text}")
    return [sys.executable, str(path)]


# The first two lives end with 75, the third waits to be ended.
FAULTY = f"""
lives = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(lives))
{READY}
sys.exit(75) if lives < 3 else time.sleep(600)
"""


def test_server_that_ends_with_75_is_started_again_and_stopped_by_its_id(tmp_path: Path) -> None:
    async def run() -> tuple[ServerProcess, int | None, int | None]:
        server = ServerProcess(program(tmp_path, FAULTY), tmp_path / "log")
        await server.start()
        watch = asyncio.create_task(server.watch())
        while server.starts < 3:
            await server.wait_changed(server.changes, 60)
        pid = server.pid
        code = await server.stop()
        await watch
        return server, pid, code

    server, pid, code = asyncio.run(run())
    assert (server.restarts, list(server.exits), code) == (2, [75, 75, -15], -15)
    assert server.is_over
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_server_that_ends_with_another_code_is_not_started_again(tmp_path: Path) -> None:
    async def run() -> ServerProcess:
        server = ServerProcess(program(tmp_path, f"{READY}sys.exit(70)"), tmp_path / "log")
        await server.start()
        await server.watch()
        return server

    server = asyncio.run(run())
    assert (server.starts, server.restarts, list(server.exits)) == (1, 0, [70])
    assert server.address is None


def test_server_that_is_replaced_ends_in_order_and_another_comes(tmp_path: Path) -> None:
    starts: list[int] = []

    async def run() -> ServerProcess:
        orderly = f"import signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n{READY}time.sleep(600)"
        server = ServerProcess(program(tmp_path, orderly), tmp_path / "log", starts.append)
        await server.start()
        watch = asyncio.create_task(server.watch())
        server.replace()
        server.replace()  # once is enough
        while server.starts < 2:
            await server.wait_changed(server.changes, 60)
        await server.stop()
        await watch
        return server

    server = asyncio.run(run())
    assert (server.replaced, server.restarts, list(server.exits)) == (1, 0, [0, 0])
    assert starts == [0, 1]


def test_server_that_is_refused_says_why_and_is_tried_again_only_where_faults_strike(tmp_path: Path) -> None:
    command = program(tmp_path, "sys.stderr.write('calserve: the port is taken.\\n'); sys.exit(1)")

    async def run(tries: int) -> ServerProcess:
        server = ServerProcess(command, tmp_path / "log", load_tries=tries)
        with pytest.raises(SoakError, match="code 1 before it was ready: calserve: the port is taken"):
            await server.start()
        return server

    assert list(asyncio.run(run(1)).exits) == [1]
    tried = asyncio.run(run(3))
    assert (list(tried.exits), tried.failed_loads) == ([1, 1, 1], 2)


def test_process_sizes_of_this_process_are_read_and_of_none_are_none() -> None:
    rss, descriptors, threads = process_sizes(os.getpid())
    assert rss is not None
    assert rss > 1 << 20
    before = descriptors
    with open(os.devnull), open(os.devnull):
        after = process_sizes(os.getpid())[1]
    assert before is not None
    assert after == before + 2
    assert threads is not None
    assert threads >= 1
    assert process_sizes(None) == (None, None, None)


def test_record_says_crashed_until_it_is_finished(tmp_path: Path) -> None:
    report = WallReport({"seed": 1}, {"calserve": "0"})
    record = Record(tmp_path)
    record.save(report)
    assert json.loads((tmp_path / JSON_NAME).read_text())["verdict"] == "crashed"
    report.samples = [Sample(0.5, 1, 1 << 20, 5, 3, 0, {"num_requests_running": 2.0})]
    record.save(report)
    found = json.loads((tmp_path / JSON_NAME).read_text())
    assert (found["verdict"], found["samples"][0]["num_requests_running"]) == ("crashed", 2.0)
    report.verdict = "passed"
    record.finish(report)
    assert json.loads((tmp_path / JSON_NAME).read_text())["verdict"] == "passed"
    assert (tmp_path / SVG_NAME).read_text().startswith("<svg")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([JSON_NAME, SVG_NAME])


def test_svg_is_xml_with_a_gap_where_nothing_was_read() -> None:
    from xml.etree import ElementTree

    seen = [Sample(float(i), 1, None if 4 <= i < 6 else (i + 1) << 20) for i in range(10)]
    lines = [item for item in ElementTree.fromstring(svg(seen)).iter() if item.tag.endswith("polyline")]
    assert [len(line.attrib["points"].split()) for line in lines] == [4, 4]
    ElementTree.fromstring(svg([]))


GOOD = WallOptions(out=Path("out"), minutes=1)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (replace(GOOD, minutes=0), "--minutes"),
        (replace(GOOD, minutes=float("nan")), "--minutes"),
        (replace(GOOD, rate=-1), "--rate"),
        (replace(GOOD, seed=-1), "--seed"),
        (replace(GOOD, deadline_ms=1), "--deadline-ms"),
        (replace(GOOD, board="abacus"), "sim and openvino"),
        (replace(GOOD, board="openvino"), "--model"),
        (replace(GOOD, model=Path("x")), "--model"),
        (replace(GOOD, board="openvino", model=Path("x"), fault_plan=Path("y")), "--fault-plan"),
    ],
)
def test_options_that_cannot_be_are_one_sentence(wrong: WallOptions, word: str) -> None:
    with pytest.raises(SoakError) as caught:
        wrong.check()
    assert word in str(caught.value)
    assert str(caught.value).endswith(".")
    GOOD.check()


def test_command_is_what_a_user_types(tmp_path: Path) -> None:
    options = replace(GOOD, board_profile="calculet-2chip", chips=2, serve_args=("--drain", "3"))
    command = serve_command(options, tmp_path / "plan")
    assert command[:4] == [sys.executable, "-m", "calserve.cli", "serve"]
    text = " ".join(command)
    for part in ("--port 0", "--board sim", "--board-profile calculet-2chip", "--chips 2", f"{tmp_path}/plan"):
        assert part in text
    assert command[-2:] == ["--drain", "3"]
    assert "max_resets" not in " ".join(serve_command(replace(GOOD, board="openvino", model=Path("m")), None))


def test_plan_is_drawn_anew_for_every_process_and_the_same_for_a_seed(tmp_path: Path) -> None:
    from calserve.runtime.sim.faults import FaultPlanError, load_fault_plan

    drawn = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        path, write = choose_plan(replace(GOOD, out=tmp_path / folder))
        assert path is not None
        for starts in (0, 1):
            write(starts)
            load_fault_plan(path)
            drawn.append(path.read_text())
    assert drawn[0] == drawn[2] != drawn[1] == drawn[3]
    assert choose_plan(replace(GOOD, has_faults=False))[0] is None
    with pytest.raises(FaultPlanError):
        choose_plan(replace(GOOD, fault_plan=tmp_path / "none.yaml"))

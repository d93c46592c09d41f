"""Starts that cannot work end with one clear sentence and a non-zero code; nothing is half started."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from server_rig import Server, Start, calserve, environment

pytestmark = pytest.mark.slow


def refused(tmp_path: Path, *args: str) -> tuple[int, str]:
    done = subprocess.run(
        calserve(*args), capture_output=True, text=True, timeout=120, env=environment(tmp_path / "runtime"), check=False
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.strip().splitlines()[-1]


def test_serve_missing_model_is_one_sentence(tmp_path: Path) -> None:
    code, said = refused(tmp_path, "serve", "--model", str(tmp_path / "none"), "--port", "0")
    assert code == 1
    assert str(tmp_path / "none") in said


def test_serve_altered_package_is_refused(tmp_path: Path, tiny_package: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_package, broken)
    weights = next(broken.rglob("*.bin"))
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    code, said = refused(tmp_path, "serve", "--model", str(broken), "--port", "0")
    assert code == 1
    assert weights.name in said
    assert "sha256" in said or "checksum" in said


def test_serve_taken_port_is_named(tmp_path: Path, tiny_package: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, said = refused(tmp_path, "serve", "--model", str(tiny_package), "--port", port)
    assert code == 1
    assert f"port {port}" in said


def test_serve_board_open_elsewhere_names_the_holder(tmp_path: Path, tiny_package: Path) -> None:
    from calserve.runtime.lock import BoardLock

    lock = BoardLock.acquire("openvino-CPU", tmp_path / "runtime")
    code, said = refused(tmp_path, "serve", "--model", str(tiny_package), "--port", "0")
    lock.release()
    assert code == 1
    assert "already open in process" in said


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("--set", "batch.profiles=[32]"), "B32"),
        (("--set", "executor.max_inflight=2"), "concurrent_jobs"),
        (("--set", "batch.profils=[1]"), "profils"),
        (("--set", "nonsense"), "--set"),
        (("--config", "/nowhere/file.yaml"), "/nowhere/file.yaml"),
    ],
)
def test_serve_bad_configuration_names_what_is_wrong(
    tmp_path: Path, tiny_package: Path, args: tuple[str, ...], word: str
) -> None:
    code, said = refused(tmp_path, "serve", "--model", str(tiny_package), "--port", "0", *args)
    assert code == 1
    assert word in said


@pytest.mark.parametrize("args", [("serve",), ("serve", "--model", "x", "--chips", "many"), ("serve", "--frobnicate")])
def test_wrong_flag_is_code_2(tmp_path: Path, args: tuple[str, ...]) -> None:
    assert refused(tmp_path, *args)[0] == 2


def test_pull_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    code, said = refused(tmp_path, "pull", "no-such-model", "--cache", str(tmp_path))
    assert code == 1
    assert "smollm2-135m" in said


def test_pack_of_something_that_is_no_gguf_leaves_nothing(tmp_path: Path) -> None:
    source = tmp_path / "model.gguf"
    source.write_bytes(b"not a model at all")
    code, said = refused(tmp_path, "pack", str(source), "-o", str(tmp_path / "out"))
    assert code == 1
    assert "model.gguf" in said
    assert not (tmp_path / "out").exists()


def test_two_chips_serve_one_model_from_two_sessions(start_server: Start, tiny_package: Path) -> None:
    import httpx

    server: Server = start_server(tiny_package, "--chips", "2")
    body = {"model": "tiny", "prompt": "the", "max_tokens": 400, "temperature": 0, "ignore_eos": True, "n": 32}
    answers: list[httpx.Response] = []
    with httpx.Client(base_url=server.base, timeout=120) as client:
        asking = threading.Thread(target=lambda: answers.append(client.post("/v1/completions", json=body)))
        asking.start()
        seen = [shown(httpx.get(f"{server.base}/metrics").text)]
        while asking.is_alive():
            seen.append(shown(httpx.get(f"{server.base}/metrics").text))
        asking.join()
    # The package has 16 lanes and a session one job at a time: more of either is the second session at work.
    assert {(view["ready"], view["lanes"]) for view in seen} == {(2, 32)}
    assert max(view["running"] for view in seen) == 32
    assert max(view["jobs"] for view in seen) == 2
    choices = answers[0].json()["choices"]
    assert len(choices) == 32
    assert len({choice["text"] for choice in choices}) == 1
    assert server.stop()[0] == 0


def shown(metrics: str) -> dict[str, float]:
    """What `/metrics` shows of all sessions together."""

    def total(name: str) -> float:
        lines = [line for line in metrics.splitlines() if line.startswith(f"calserve_{name}")]
        assert lines, name
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    return {
        "ready": total('model_state{model_name="tiny",state="ready"}'),
        "lanes": total("lanes{"),
        "running": total("num_requests_running"),
        "jobs": total("jobs_in_flight"),
    }

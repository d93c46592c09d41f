"""`calserve serve --board sim`: a simulated board over HTTP on real time, and it says what it is."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_rig import Server, Start, calserve, environment, quick_profile

from calserve.runtime.sim.oracle import greedy_tokens

pytestmark = pytest.mark.slow

# Of the simulated vocabulary (a token is a byte): the ends of an answer, and every byte that is no UTF-8.
EOS = (0xF5, 0xC0)
CONTROL = {0xC0, 0xC1, *range(0xF5, 0x100)}


def right_text(prompt: list[int], count: int, model: str = "sim-model") -> str:
    tokens = greedy_tokens(prompt, count, 256, model, EOS)
    return bytes(token for token in tokens if token not in CONTROL).decode("utf-8", "replace")


def ask(server: Server, prompt: Any, count: int = 20, **more: Any) -> httpx.Response:
    body = {"model": "sim-model", "prompt": prompt, "max_tokens": count, "temperature": 0, **more}
    return httpx.post(f"{server.base}/v1/completions", json=body, timeout=60)


def metric(server: Server, name: str) -> float:
    """Summed over its series; `name` may have some of the labels."""
    text = httpx.get(f"{server.base}/metrics").text
    found = re.findall(rf"^calserve_{re.escape(name)}\S* (\S+)$", text, re.MULTILINE)
    assert found, name
    return sum(map(float, found))


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profiles")
    quick_profile(folder / "lanes.yaml", "assumed-lanes")
    quick_profile(folder / "span.yaml", "calculet-2chip", context=2048)
    return folder


@pytest.fixture(scope="module")
def lanes_server(start_server: Start, profiles: Path) -> Server:
    return start_server(None, "--board", "sim", "--board-profile", str(profiles / "lanes.yaml"))


def test_sim_server_answers_with_the_oracles_text(lanes_server: Server) -> None:
    for prompt in ([7], [200, 3, 3, 9] * 20, list(range(190))):
        answer = ask(lanes_server, prompt)
        assert answer.json()["choices"][0]["text"] == right_text(prompt, 20)


def test_sim_server_text_prompt_is_its_bytes(lanes_server: Server) -> None:
    answer = ask(lanes_server, "héllo")
    assert answer.json()["usage"]["prompt_tokens"] == 6
    assert answer.json()["choices"][0]["text"] == right_text(list("héllo".encode()), 20)


def test_sim_server_stream_joined_is_the_oracles_text(lanes_server: Server) -> None:
    with httpx.stream(
        "POST",
        f"{lanes_server.base}/v1/completions",
        json={"model": "sim-model", "prompt": [5, 6], "max_tokens": 30, "temperature": 0, "stream": True},
    ) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    assert "".join(json.loads(line)["choices"][0]["text"] or "" for line in lines[:-1]) == right_text([5, 6], 30)


def test_sim_server_chat_goes_through_its_template(lanes_server: Server) -> None:
    body = {"model": "sim-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "temperature": 0}
    answer = httpx.post(f"{lanes_server.base}/v1/chat/completions", json=body, timeout=60).json()
    # <|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n, each control token one byte that no text has.
    prompt = [0xC1, *b"user\nhi", 0xF5, *b"\n", 0xC1, *b"assistant\n"]
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    assert answer["choices"][0]["message"]["content"] == right_text(prompt, 9)


def test_sim_server_says_everywhere_that_it_is_simulated(lanes_server: Server) -> None:
    assert "simulated" in lanes_server.ready_line
    assert "profile lanes" in lanes_server.ready_line
    for path in ("/v1/models/sim-model", "/health/live", "/health/ready", "/v1/models/sim-model/ready"):
        assert httpx.get(f"{lanes_server.base}{path}").json()["simulated"] is True, path
    assert httpx.get(f"{lanes_server.base}/v1/models").json()["data"][0]["simulated"] is True
    assert metric(lanes_server, "board_simulated") == 1


def test_sim_server_metrics_show_the_board_and_its_buffers(lanes_server: Server) -> None:
    ask(lanes_server, [1, 2, 3])
    assert metric(lanes_server, 'board_memory_used_bytes{device="0"') > 0
    assert metric(lanes_server, 'board_memory_used_bytes{device="1"') == 0
    assert metric(lanes_server, "board_jobs_finished_total") > 0
    assert metric(lanes_server, 'buffers{state="leased"') == 0
    assert metric(lanes_server, 'buffers{state="quarantined"') == 0
    assert metric(lanes_server, 'kv_units_by_state{model_name="sim-model",state="free"') == 16
    assert metric(lanes_server, "kv_units_by_state{") == 16


def test_sim_server_holds_the_machine_wide_lock(start_server: Start, tmp_path: Path, profiles: Path) -> None:
    profile = str(profiles / "lanes.yaml")
    runtime = tmp_path / "runtime"
    command = calserve("serve", "--board", "sim", "--board-profile", profile, "--port", "0", "--log-level", "warning")
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment(runtime))
    try:
        assert first.stdout is not None
        assert b"http://" in first.stdout.readline()
        second = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env=environment(runtime), check=False
        )
    finally:
        first.terminate()
        assert first.wait(60) == 0
    assert second.returncode == 1
    assert f"already open in process {first.pid}" in second.stderr


def test_sim_server_on_two_chips_serves_a_copy_on_each(start_server: Start, profiles: Path) -> None:
    server = start_server(None, "--board", "sim", "--board-profile", str(profiles / "lanes.yaml"), "--chips", "2")
    assert "32 lanes" in server.ready_line
    assert metric(server, 'model_state{model_name="sim-model",state="ready"') == 2
    assert metric(server, 'board_memory_used_bytes{device="1"') == metric(server, 'board_memory_used_bytes{device="0"')
    answers = ask(server, [4, 2], n=32).json()["choices"]
    assert {choice["text"] for choice in answers} == {right_text([4, 2], 20)}
    assert server.stop()[0] == 0


def test_sim_server_whose_graph_spans_both_chips_is_one_session(start_server: Start, profiles: Path) -> None:
    server = start_server(None, "--board", "sim", "--board-profile", str(profiles / "span.yaml"), "--model", "other")
    assert server.ready_line.startswith("other is ready")
    assert "1 lanes of 2048 tokens" in server.ready_line
    assert metric(server, 'board_memory_used_bytes{device="1"') > 0
    answer = ask(server, [9, 9], model="other").json()
    assert answer["choices"][0]["text"] == right_text([9, 9], 20, "other")
    assert server.stop()[0] == 0


def test_sim_server_leaves_no_files_behind(tmp_path: Path, profiles: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = calserve("serve", "--board", "sim", "--board-profile", str(profiles / "lanes.yaml"), "--port", "0")
    env = {**environment(tmp_path / "runtime"), "TMPDIR": str(temporary)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env)
    assert process.stdout is not None
    assert b"http://" in process.stdout.readline()
    assert [path.name.startswith("calserve-sim-") for path in temporary.iterdir()] == [True]
    process.terminate()
    assert process.wait(60) == 0
    assert not list(temporary.iterdir())


@pytest.fixture
def faulty_server(start_server: Start, profiles: Path, tmp_path: Path) -> Server:
    """It loses its device at its 180th job: the warm-up is over by then, and an answer of 150 tokens is not."""
    plan = tmp_path / "plan.yaml"
    plan.write_text("schema: calserve-fault-plan/v1\nfaults: [{point: status_ccu_exception, at_visit: 180}]\n", "utf-8")
    profile = str(profiles / "lanes.yaml")
    return start_server(None, "--board", "sim", "--board-profile", profile, "--fault-plan", str(plan))


@pytest.mark.parametrize("n", [1, 2])
def test_sim_server_whole_answer_whose_device_is_lost_in_the_middle_is_right_after_the_recovery(
    faulty_server: Server, n: int
) -> None:
    lost = ask(faulty_server, [7], 150, min_tokens=150, n=n, logprobs=1)
    assert lost.status_code == 200
    body = lost.json()
    assert [choice["text"] for choice in body["choices"]] == [right_text([7], 150)] * n
    assert body["usage"] == {"prompt_tokens": 1, "completion_tokens": 150 * n, "total_tokens": 1 + 150 * n}
    # it was begun, lost and begun again: more tokens were made than anybody got
    made = metric(faulty_server, "generation_tokens_total")
    assert 150 * n < made < 300 * n
    assert metric(faulty_server, "board_resets_total") == 1
    calm = ask(faulty_server, [7], 150, min_tokens=150, n=n, logprobs=1).json()
    assert calm["choices"] == body["choices"]
    assert metric(faulty_server, "generation_tokens_total") == made + 150 * n
    assert faulty_server.stop()[0] == 0


def test_sim_server_stream_whose_device_is_lost_in_the_middle_gets_its_error_event(faulty_server: Server) -> None:
    answer = ask(faulty_server, [7], 150, min_tokens=150, stream=True)
    assert answer.status_code == 200
    *parts, last = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line]
    assert last["error"]["code"] == "device_fault"
    text = "".join(part["choices"][0]["text"] for part in parts)
    assert text
    assert right_text([7], 150).startswith(text)
    assert ask(faulty_server, [7], 150, min_tokens=150).json()["choices"][0]["text"] == right_text([7], 150)
    assert faulty_server.stop()[0] == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--board", "sim", "--board-profile", "no-such"), ("no-such", "assumed-lanes")),
        (("--board", "sim", "--board-profile", "/nowhere/board.yaml"), ("/nowhere/board.yaml",)),
        (("--board", "sim", "--fault-plan", "/nowhere/plan.yaml"), ("/nowhere/plan.yaml",)),
        (("--board", "sim", "--board-profile", "calculet-2chip", "--chips", "1"), ("--chips 1", "spans 2")),
        (("--board", "sim", "--set", "batch.profiles=[32]"), ("B32",)),
        (("--board", "abacus", "--model", "x"), ("abacus", "openvino and sim")),
        (("--model", "x", "--fault-plan", "plan.yaml"), ("--fault-plan", "--board sim")),
        (("--board", "openvino", "--model", "x", "--board-profile", "assumed-lanes"), ("--board-profile",)),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_sim_server_bad_flags_are_one_sentence(tmp_path: Path, args: tuple[str, ...], words: tuple[str, ...]) -> None:
    code, said = refused(tmp_path, "serve", "--port", "0", *args)
    assert code == 1
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("schema: calserve-fault-plan/v1\nfaults: [{point: no_such_point}]\n", "no_such_point"),
        ("schema: calserve-fault-plan/v1\nfaults: [{point: logits_nan, at_visit: 0}]\n", "at_visit"),
        ("- a list\n", "calserve-fault-plan/v1"),
        ("{", "YAML"),
    ],
    ids=["point", "visit", "list", "broken"],
)
def test_sim_server_bad_fault_plan_is_one_sentence_with_the_file(tmp_path: Path, text: str, word: str) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(text)
    code, said = refused(tmp_path, "serve", "--port", "0", "--board", "sim", "--fault-plan", str(plan))
    assert code == 1
    assert str(plan) in said
    assert word in said


def refused(tmp_path: Path, *args: str) -> tuple[int, str]:
    done = subprocess.run(
        calserve(*args), capture_output=True, text=True, timeout=120, env=environment(tmp_path / "runtime"), check=False
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.strip().splitlines()[-1]

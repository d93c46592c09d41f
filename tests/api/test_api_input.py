"""Bad input: a 4xx with OpenAI's error object that names the field, quickly, and nothing reaches the engine."""

import json
import time

import pytest
from api_rig import MODEL, Served

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hi"}]

BAD_COMMON = [
    ("n", "0"), ("n", "-1"), ("n", "1.5"), ("n", '"2"'), ("n", "1000000000000"), ("n", "true"), ("n", "[]"),
    ("temperature", "-0.1"), ("temperature", "2.1"), ("temperature", '"1"'), ("temperature", "1e400"),
    ("top_p", "0"), ("top_p", "1.1"), ("top_p", '"x"'), ("top_k", "0.01"), ("top_k", "-2"), ("top_k", '"1"'),
    ("min_p", "-1"), ("min_p", "2"), ("seed", "1.5"), ("seed", "9223372036854775808"), ("seed", '"1"'),
    ("presence_penalty", "2.5"), ("frequency_penalty", "-2.5"), ("presence_penalty", '"1"'),
    ("max_tokens", "0"), ("max_tokens", "-1"), ("max_tokens", "9223372036854775808"), ("max_tokens", "1.5"),
    ("max_tokens", '"5"'), ("min_tokens", "-1"), ("min_tokens", "4294967296"),
    ("stop", '""'), ("stop", '[""]'), ("stop", "5"), ("stop", '["a",1]'), ("stop", json.dumps(["a"] * 17)),
    ("stop", json.dumps("a" * 1025)), ("stop", json.dumps([c * 1024 for c in "abcd"] + ["e"])),
    ("stop_token_ids", "[-1]"), ("stop_token_ids", "[300]"),
    ("stop_token_ids", json.dumps([1] * 129)), ("ignore_eos", "1"), ("stream", '"yes"'), ("stream", "1"),
    ("stream_options", '{"include_usage":true}'), ("logit_bias", '{"300":1}'), ("logit_bias", '{"a":1}'),
    ("logit_bias", '{"1":101}'), ("logit_bias", "[]"), ("logit_bias", '{"1":' + "9" * 70000 + "}"),
    ("user", "5"), ("model", "5"), ("model", "null"),
    ("foo", "1"), ("repetition_penalty", "0"), ("repetition_penalty", "11"), ("best", "null"), ("x" * 5000, "1"),
    ("store", "true"), ("metadata", '{"a":"b"}'), ("service_tier", '"flex"'),
]  # fmt: skip
BAD_CHAT = [
    ("messages", "[]"), ("messages", "null"), ("messages", '"hi"'), ("messages", "[5]"), ("messages", "{}"),
    ("messages[0].role", '[{"role":"wizard","content":"x"}]'), ("messages[0].content", '[{"role":"user"}]'),
    ("messages[0].content", '[{"role":"user","content":null}]'), ("messages[0].role", '[{"content":"x"}]'),
    ("messages[0].content", '[{"role":"user","content":5}]'),
    ("messages[0].content[0]", '[{"role":"user","content":[{"type":"text"}]}]'),
    ("messages[0].content[0].image_url", '[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]'),
    ("messages", json.dumps([{"role": "user", "content": ""}] * 65)),
    ("messages[0].name", '[{"role":"user","content":"x","name":"bob"}]'),
    ("messages[1].tool_calls", '[{"role":"user","content":"x"},{"role":"assistant","content":"","tool_calls":[{}]}]'),
    ("tools", '[{"type":"function"}]'), ("tool_choice", '"required"'), ("response_format", '{"type":"json_object"}'),
    ("functions", "[{}]"), ("modalities", '["audio"]'), ("reasoning_effort", '"high"'), ("logprobs", "1"),
    ("top_logprobs", "1"), ("chat_template", '"{{x}}"'), ("chat_template_kwargs", "{}"), ("echo", "false"),
    ("max_completion_tokens", "0"), ("prompt", '"x"'),
]  # fmt: skip
BAD_COMPLETION = [
    ("prompt", '""'), ("prompt", "[]"), ("prompt", "[[]]"), ("prompt", '["a",""]'), ("prompt", "null"),
    ("prompt", "[-1]"), ("prompt", "[300]"), ("prompt", "[[1],[300]]"), ("prompt", "[1.5]"), ("prompt", '["a",1]'),
    ("prompt", "[9223372036854775808]"), ("prompt", "5"), ("prompt", "{}"), ("prompt", "[[1,[2]]]"),
    ("prompt", json.dumps(["a"] * 129)), ("best_of", "2"), ("echo", "true"), ("suffix", '"x"'),
    ("logprobs", "6"), ("logprobs", "-1"), ("logprobs", "true"), ("messages", "[]"),
]  # fmt: skip


def _check(served: Served, path: str, field: str, value: str, base: dict[str, str]) -> None:
    top = field.split("[", maxsplit=1)[0].split(".", maxsplit=1)[0]
    body = ",".join(f"{json.dumps(k)}:{v}" for k, v in (base | {top: value}).items())
    response = served.client.post(path, content="{" + body + "}", headers={"content-type": "application/json"})
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "invalid_request_error"), response.text
    shown = field if len(field) < 64 else field[:64]
    assert (error["param"] or "").startswith(shown)
    assert shown.split("[")[0].split(".")[0] in error["message"]
    assert len(response.content) < 1000
    assert served.engine.submissions == []


@pytest.fixture(scope="module")
def served() -> object:
    server = Served()
    yield server
    server.close()


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize(("field", "value"), BAD_COMMON)
def test_common_field_with_a_bad_value_is_refused_by_name(served: Served, path: str, field: str, value: str) -> None:
    base = {"model": f'"{MODEL}"'} | ({"messages": json.dumps(USER)} if path == CHAT else {"prompt": '"hi"'})
    _check(served, path, field, value, base)


@pytest.mark.parametrize(("field", "value"), BAD_CHAT)
def test_chat_field_with_a_bad_value_is_refused_by_name(served: Served, field: str, value: str) -> None:
    _check(served, CHAT, field, value, {"model": f'"{MODEL}"', "messages": json.dumps(USER)})


@pytest.mark.parametrize(("field", "value"), BAD_COMPLETION)
def test_completion_field_with_a_bad_value_is_refused_by_name(served: Served, field: str, value: str) -> None:
    _check(served, COMPLETION, field, value, {"model": f'"{MODEL}"', "prompt": '"hi"'})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not valid JSON"),
        (b"[]", "object"),
        (b"5", "object"),
        (b'"x"', "object"),
        (b'{"model":"toy","prompt":"hi"', "not valid JSON"),
        (b'{"model":"toy","prompt":"\xff"}', "not valid JSON"),
        (b'{"model":"toy","prompt":"\\ud800 alone"}', "not valid JSON"),
        (b'{"model":"toy","prompt":"\\ud800"}', "half of a surrogate pair"),
        (b'{"a`b - at `$.x":1}', "a`b - at `$.x is not an option of this route"),
        (
            b'{"model":"toy","prompt":"a","messages":[{"role":"user","content":"x"}],"logit_bias":{"7":"x"}}',
            "this route",
        ),
        (b'{"model":"toy","prompt":"\xed\xa0\x80"}', "not valid JSON"),
        (b'{"model":"toy","prompt":"hi","temperature":NaN}', "not valid JSON"),
        (b'{"model":"toy","prompt":"hi","top_p":Infinity}', "not valid JSON"),
        (b'{"model":"toy","prompt":"hi","presence_penalty":-Infinity}', "not valid JSON"),
        (b'{"model":"toy","prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "prompt"),
        (b'{"model":"toy","prompt":"hi","tools":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "tools"),
        (b'{"model":"toy","metadata":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}", "nested too deeply"),
        (b"[" * 100_000 + b"]" * 100_000, "object"),
        (b'{"model":"toy","max_tokens":' + b"1" * 1_000_000 + b"}", "max_tokens"),
        (b'{"model":"toy","prompt":' + b"1" * 1_000_000 + b"}", "prompt"),
        (b"{" + b",".join(b'"%x":1' % i for i in range(100_000)) + b"}", "0"),
        (b"\x00" * 1000, "not valid JSON"),
    ],
)
def test_hostile_json_is_refused_in_milliseconds(served: Served, body: bytes, message: str) -> None:
    began = time.perf_counter()
    for path in (CHAT, COMPLETION):
        response = served.client.post(path, content=body, headers={"content-type": "application/json"})
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"
    assert message in response.json()["error"]["message"]
    # Two requests; each takes some milliseconds, the bound is for a loaded machine.
    assert time.perf_counter() - began < 1.0
    assert served.engine.submissions == []


def test_chat_of_too_many_messages_is_told_the_limit(served: Served) -> None:
    error = served.chat(messages=[{"role": "user", "content": ""}] * 4097).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "messages")
    assert "4096" in error["message"]
    assert "4097" in error["message"]


def test_bad_bias_is_told_with_its_key(served: Served) -> None:
    for bad in ("x", 101, True, None):
        error = served.complete(logit_bias={"6": 1, "7": bad}).json()["error"]
        assert error["param"] == "logit_bias"
        assert "logit_bias['7']" in error["message"]


@pytest.mark.parametrize(
    ("limits", "given"),
    [({"max_completion_tokens": 3}, 3), ({"max_tokens": 3, "max_completion_tokens": 3}, 3), ({"max_tokens": 5}, 5)],
)
def test_both_names_of_the_limit_work_on_both_routes(limits: dict[str, int], given: int, one: Served) -> None:
    for call in (one.chat, one.complete):
        assert call(**limits).status_code == 200
        assert one.engine.submissions[-1].event.max_new_tokens == given
        refused = call(**(limits | {"max_tokens": 6, "max_completion_tokens": 7}))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")


def test_chat_whole_answer_of_too_many_numbers_names_the_field(served: Served) -> None:
    error = served.chat(n=128, max_tokens=40, logprobs=True, top_logprobs=20).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "top_logprobs")
    assert served.engine.submissions == []


def test_body_over_the_limit_is_refused_while_it_streams_in(served: Served) -> None:
    def pieces():  # no Content-Length: only counting can find it
        for _ in range(40):
            yield b"1" * 65536

    huge = served.client.post(COMPLETION, content=pieces(), headers={"content-type": "application/json"})
    assert huge.status_code == 413
    assert huge.json()["error"]["code"] == "body_too_large"
    many_digits = b'{"model":"toy","max_tokens":' + b"1" * 10**7 + b"}"
    declared = served.client.post(COMPLETION, content=many_digits, headers={"content-type": "application/json"})
    assert declared.status_code == 413
    assert str(1 << 20) in declared.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_content_type_other_than_json_is_refused(served: Served, kind: str) -> None:
    response = served.client.post(COMPLETION, content=b"{}", headers={"content-type": kind} if kind else {})
    assert response.status_code == 415
    assert response.json()["error"]["code"] == "unsupported_media_type"


@pytest.mark.parametrize("name", ["missing", "a" * 100_000, "../../etc/passwd", "x\r\nset-cookie: a", "\x1b[31m", ""])
def test_unknown_model_is_a_404_that_names_the_field(served: Served, name: str) -> None:
    response = served.complete(model=name)
    assert response.status_code == 404
    assert (response.json()["error"]["code"], response.json()["error"]["param"]) == ("model_not_found", "model")
    assert len(response.content) < 500
    assert "set-cookie" not in response.headers


def test_prompt_of_more_characters_than_could_fit_is_refused_before_tokenizing(served: Served) -> None:
    response = served.complete(prompt="a" * (64 * 128 + 1))
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
    assert "8193" in error["message"]
    assert "8192" in error["message"]
    assert served.engine.submissions == []


def test_prompt_beyond_the_context_names_limit_and_given() -> None:
    served = Served()
    response = served.complete(prompt="a" * 60, max_tokens=5)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert "64" in response.json()["error"]["message"]
    assert "65" in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == "prompt"
    chat = served.chat(messages=[{"role": "user", "content": "a" * 60}], stream=True)
    assert chat.json()["error"]["param"] == "messages"
    streamed = served.complete(prompt="a" * 60, max_tokens=5, stream=True)
    assert streamed.status_code == 400
    full = served.complete(prompt="a" * 64)
    assert full.status_code == 400
    assert served.complete(prompt="a" * 60, max_tokens=4).status_code == 200
    served.close()


@pytest.mark.parametrize(
    "no_op",
    [
        {"n": 1}, {"n": None}, {"logit_bias": None}, {"logit_bias": {}}, {"response_format": {"type": "text"}},
        {"response_format": None}, {"store": False}, {"tools": []}, {"tool_choice": "none"}, {"metadata": None},
        {"parallel_tool_calls": True}, {"service_tier": "auto"}, {"modalities": ["text"]}, {"logprobs": False},
        {"logprobs": None, "top_logprobs": None}, {"stop": None}, {"stop": []}, {"seed": None}, {"user": None},
        {"max_tokens": None, "max_completion_tokens": 4}, {"stream": False}, {"stream_options": None},
        {"stop": [c * 1024 for c in "abcd"]},
        {"top_k": -1}, {"top_k": 0}, {"temperature": 0}, {"temperature": 1}, {"presence_penalty": 0},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
        {"messages": [{"role": "developer", "content": "x"}, {"role": "assistant", "content": "y", "refusal": None}]},
    ],
)  # fmt: skip
def test_openai_default_that_changes_nothing_is_accepted(no_op: dict, one: Served) -> None:
    assert one.chat(**no_op).status_code == 200, one.chat(**no_op).text


@pytest.fixture(scope="module")
def one() -> object:
    server = Served()
    yield server
    server.close()

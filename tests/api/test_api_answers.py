"""Answers: shapes, usage, finish reasons, streamed against whole."""

import json

import openai
import pytest
from api_rig import EOS, MODEL, Served, chunks, says

from calserve.core.events import CancelCause
from calserve.core.outcomes import FinishReason
from calserve.executor.messages import Delivery, Submission
from calserve.sampling.sampler import Choice


def test_chat_whole_answer_has_openai_shape(served: Served) -> None:
    answer = served.chat(max_tokens=5).json()
    id = answer.pop("id")
    assert id.startswith("chatcmpl-")
    # "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n": 3 marks + 5 + 2 + 1 + 10 bytes.
    assert answer == {
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello world", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 21, "completion_tokens": 2, "total_tokens": 23},
    }


def test_chat_prompt_is_rendered_with_marks_from_the_template_only(served: Served) -> None:
    served.chat(messages=[{"role": "user", "content": "a<|im_end|>"}])
    prompt = served.engine.submissions[0].sequence.prompt
    # The typed mark is ten plain characters; only the template's own marks are special.
    assert [token for token in prompt if token >= 256] == [256, 257, 256]


def test_completion_whole_answer_has_openai_shape(served: Served) -> None:
    answer = served.complete(max_tokens=5).json()
    assert answer.pop("id").startswith("cmpl-")
    assert answer == {
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": MODEL,
        "choices": [{"index": 0, "text": "Hello world", "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4},
    }


def test_chat_stream_begins_with_the_role_and_ends_with_done(served: Served) -> None:
    response = served.chat(stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    parts = chunks(response.text)
    assert [part["choices"][0]["delta"] for part in parts] == [
        {"role": "assistant", "content": ""},
        {"content": "Hello"},
        {"content": " world"},
        {},
    ]
    assert [part["choices"][0]["finish_reason"] for part in parts] == [None, None, None, "stop"]
    assert {part["object"] for part in parts} == {"chat.completion.chunk"}
    assert {part["id"] for part in parts} == {response.headers["x-request-id"]}
    assert all("usage" not in part for part in parts)


@pytest.mark.parametrize("route", ["chat", "complete"])
def test_stream_usage_only_when_asked_comes_last_without_choices(served: Served, route: str) -> None:
    whole = getattr(served, route)().json()["usage"]
    body = getattr(served, route)(stream=True, stream_options={"include_usage": True}).text
    parts = chunks(body)
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"] == whole
    assert all(part["usage"] is None for part in parts[:-1])


@pytest.mark.parametrize("texts", [("é", "", "\u2028x\n\n", 'q"\\'), ("",), ("data: [DONE]\n\n",)])
def test_stream_joined_equals_whole_text(served: Served, texts: tuple[str, ...]) -> None:
    served.engine.script = says(*texts, reason=FinishReason.LENGTH)
    whole = served.complete().json()["choices"][0]
    parts = chunks(served.complete(stream=True).text)
    assert "".join(part["choices"][0]["text"] for part in parts) == whole["text"] == "".join(texts)
    assert parts[-1]["choices"][0]["finish_reason"] == whole["finish_reason"] == "length"


def test_held_back_text_makes_no_empty_chunks(served: Served) -> None:
    served.engine.script = says("", "", "ab", "")
    parts = chunks(served.complete(stream=True).text)
    assert [part["choices"][0]["text"] for part in parts] == ["ab", ""]


def test_n_gives_choices_in_order_and_counts_the_prompt_once(served: Served) -> None:
    def script(engine, submission: Submission) -> None:
        engine.say(submission.event.request, f"[{submission.event.request[-1]}]")
        engine.end(submission.event.request, FinishReason.STOP)

    served.engine.script = script
    answer = served.complete(n=3, seed=7).json()
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "[0]"), (1, "[1]"), (2, "[2]")]
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert [s.sequence.params.sampling.seed for s in served.engine.submissions] == [7, 8, 9]


def test_prompt_lists_give_one_choice_each_and_count_every_prompt(served: Served) -> None:
    answer = served.complete(prompt=["a", "bcd"], n=2).json()
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert [len(s.sequence.prompt) for s in served.engine.submissions] == [1, 1, 3, 3]
    assert answer["usage"]["prompt_tokens"] == 4


def test_streamed_choices_each_finish_before_one_done(served: Served) -> None:
    parts = chunks(served.chat(stream=True, n=2).text)
    finished = [p["choices"][0]["index"] for p in parts if p["choices"][0]["finish_reason"] == "stop"]
    assert sorted(finished) == [0, 1]
    for index in (0, 1):
        deltas = [p["choices"][0]["delta"] for p in parts if p["choices"][0]["index"] == index]
        assert deltas[0] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("prompt", [[1, 2, 299], [[1, 2, 299]]])
def test_token_id_prompts_arrive_as_they_are(served: Served, prompt: list) -> None:
    assert served.complete(prompt=prompt).status_code == 200
    assert list(served.engine.submissions[0].sequence.prompt) == [1, 2, 299]


def test_parameters_reach_the_sequence(served: Served) -> None:
    served.chat(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=3, max_completion_tokens=9, min_tokens=2,
        stop=["x", "yz"], ignore_eos=True, presence_penalty=0.5, frequency_penalty=-0.5, user="someone",
        logit_bias={"5": 1},
    )  # fmt: skip
    submission = served.engine.submissions[0]
    params = submission.sequence.params
    sampling = params.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 7, 0.1)
    assert (sampling.seed, sampling.presence_penalty, sampling.frequency_penalty) == (3, 0.5, -0.5)
    assert sampling.logit_bias == {5: 1.0}
    assert (params.max_new_tokens, params.min_tokens, params.ignore_eos) == (9, 2, True)
    assert (params.stops, params.eos_ids, params.vocab_size) == (("x", "yz"), (EOS,), 300)
    assert (submission.event.max_new_tokens, submission.event.tenant) == (9, "default")
    assert submission.event.arrived_ns == served.now_ns


def test_chat_without_max_tokens_takes_the_rest_of_the_context(served: Served) -> None:
    served.chat()
    submission = served.engine.submissions[0]
    assert submission.event.max_new_tokens == submission.sequence.params.max_new_tokens == 64 - 21


def test_completion_without_max_tokens_takes_openais_sixteen(served: Served) -> None:
    served.complete()
    assert served.engine.submissions[0].event.max_new_tokens == 16


def test_sampled_requests_without_a_seed_get_different_ones(served: Served) -> None:
    served.complete(n=2)
    seeds = {s.sequence.params.sampling.seed for s in served.engine.submissions}
    assert len(seeds) == 2
    assert None not in seeds


def _with_logprobs(engine, submission: Submission) -> None:
    request = submission.event.request
    engine.say(request, "A", (Choice(33, -0.5, ((33, -0.5), (34, -1.5))),), (0,))
    engine.say(request, "", (Choice(127, -0.7, ((34, -0.6), (127, -0.7))),), (1,))
    engine.say(request, "", (Choice(EOS, -0.1, ((EOS, -0.1), (34, -3.0))),), (1,))
    engine.end(request, FinishReason.STOP)


def test_chat_logprobs_have_openai_shape_and_leave_the_end_token_out(served: Served) -> None:
    served.engine.script = _with_logprobs
    whole = served.chat(logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]
    tokenizer_text = whole["content"][0]["token"]
    assert len(whole["content"]) == 2
    assert whole["content"][0]["logprob"] == -0.5
    assert whole["content"][0]["bytes"] == list(tokenizer_text.encode())
    assert [top["logprob"] for top in whole["content"][0]["top_logprobs"]] == [-0.5, -1.5]
    parts = chunks(served.chat(logprobs=True, top_logprobs=2, stream=True).text)
    streamed = [e for p in parts for e in (p["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == whole["content"]


def test_completion_logprobs_have_openai_shape(served: Served) -> None:
    served.engine.script = _with_logprobs
    logprobs = served.complete(logprobs=2).json()["choices"][0]["logprobs"]
    assert {len(values) for values in logprobs.values()} == {2}
    assert logprobs["token_logprobs"] == [-0.5, -0.7]
    assert logprobs["text_offset"] == [0, 1]
    for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
        assert token in top


def _with_split_character(engine, submission: Submission) -> None:
    """Three tokens make one character, then one more token; an end token stands between them."""
    request = submission.event.request
    engine.say(request, "\u20ac", tuple(Choice(token, -0.5, ()) for token in (160, 224, EOS, 104)), (7, 7, 7, 7))
    engine.say(request, "b", (Choice(65, -0.7, ()),), (8,))
    engine.end(request, FinishReason.STOP)


def test_text_offsets_are_the_engines_streamed_and_whole(served: Served) -> None:
    served.engine.script = _with_split_character
    whole = served.complete(logprobs=0).json()["choices"][0]["logprobs"]["text_offset"]
    parts = chunks(served.complete(logprobs=0, stream=True).text)
    streamed = [at for p in parts for at in (p["choices"][0]["logprobs"] or {"text_offset": []})["text_offset"]]
    assert whole == streamed == [7, 7, 7, 8]


def _first_choice_starts_over(engine, submission: Submission) -> None:
    """The second choice has ended by then, so the reader holds what came of both."""
    first, second = (s.event.request for s in engine.submissions[:2]) if len(engine.submissions) == 2 else ("", "")
    if not second:
        return
    engine.say(first, "old", (Choice(33, -0.5, ()), Choice(34, -0.5, ())), (0, 1))
    engine.say(second, "kept", (Choice(35, -0.25, ()),), (0,))
    engine.end(second, FinishReason.STOP)
    engine.say_many([Delivery(first, "new", (65,), (Choice(36, -0.75, ()),), (0,), is_anew=True)])
    engine.open[first] = 1  # what the engine counts begins anew as well
    engine.end(first, FinishReason.STOP)


def test_choice_that_starts_over_shows_nothing_of_its_first_try(served: Served) -> None:
    served.engine.script = _first_choice_starts_over
    body = served.complete(n=2, logprobs=0).json()
    assert [choice["text"] for choice in body["choices"]] == ["new", "kept"]
    logprobs = [choice["logprobs"] for choice in body["choices"]]
    assert [(each["token_logprobs"], each["text_offset"]) for each in logprobs] == [([-0.75], [0]), ([-0.25], [0])]
    assert body["usage"]["completion_tokens"] == 2


def test_openai_client_reads_whole_and_streamed_answers(served: Served) -> None:
    client = openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == [MODEL]
    messages = [{"role": "user", "content": "hi"}]
    whole = client.chat.completions.create(model=MODEL, messages=messages)
    assert whole.choices[0].message.content == "Hello world"
    assert whole.usage.total_tokens == 23
    stream = client.chat.completions.create(
        model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True}
    )
    parts = list(stream)
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == "Hello world"
    assert parts[-1].usage.total_tokens == 23
    assert client.completions.create(model=MODEL, prompt="hi").choices[0].text == "Hello world"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=messages)
    assert missing.value.code == "model_not_found"
    client.close()


def test_tokens_said_together_leave_in_order(served: Served) -> None:
    text = [f"{i} " for i in range(500)]
    served.engine.script = says(*text)
    parts = chunks(served.complete(stream=True).text)
    assert "".join(part["choices"][0]["text"] for part in parts) == "".join(text)


def test_cancel_is_not_posted_for_a_request_that_ended(served: Served) -> None:
    served.complete()
    served.complete(stream=True)
    served.client.get("/health/ready")
    assert not [post for post in served.engine.posts if getattr(post, "cause", None) is CancelCause.CLIENT_GONE]
    assert json.loads(served.client.get("/health/ready").text) == {"status": "ready"}

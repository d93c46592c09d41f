"""The `openai` client against a live server on the real model; every expected text comes from the reference file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from server_rig import Server

from calserve.package.reader import open_package
from calserve.text.chat import ChatTemplate
from calserve.text.tokenizer import Tokenizer

REFERENCE = json.loads((Path(__file__).parent.parent / "data" / "smollm2-135m-greedy.json").read_text())
ITEMS: list[dict[str, Any]] = REFERENCE["items"]

pytestmark = [pytest.mark.slow, pytest.mark.model]


@pytest.fixture
def client(exact_server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{exact_server.base}/v1", api_key="none", max_retries=0)


def greedy(client: openai.OpenAI, item: dict[str, Any], **more: Any) -> Any:
    how: dict[str, Any] = {
        "model": "smollm2-135m",
        "max_tokens": 64,
        "temperature": 0,
        "extra_body": {"min_tokens": 64},
        **more,
    }
    if item["kind"] == "text":
        return client.completions.create(prompt=item["prompt"], **how)
    return client.chat.completions.create(messages=item["messages"], **how)


def text_of(answer: Any) -> str:
    choice = answer.choices[0]
    return str(choice.text if hasattr(choice, "text") else choice.message.content)


def test_reference_prompts_greedy_texts_are_equal(client: openai.OpenAI) -> None:
    equal = 0
    for item in ITEMS:
        answer = greedy(client, item)
        equal += text_of(answer) == item["greedy_text"]
        assert answer.usage.prompt_tokens == len(item["prompt_token_ids"])
        assert answer.usage.completion_tokens == 64
        assert answer.choices[0].finish_reason == "length"
    assert len(ITEMS) == 24
    assert equal >= 23


def test_reference_prompts_together_give_the_texts_they_give_alone(client: openai.OpenAI) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(ITEMS)) as pool:
        texts = list(pool.map(lambda item: text_of(greedy(client, item)), ITEMS))
    assert sum(text == item["greedy_text"] for text, item in zip(texts, ITEMS, strict=True)) >= 23


@pytest.mark.parametrize("item", [ITEMS[0], ITEMS[-1]], ids=lambda item: item["kind"])
def test_stream_joined_equals_the_whole_and_usage_comes_only_when_asked(
    client: openai.OpenAI, item: dict[str, Any]
) -> None:
    chunks = list(greedy(client, item, stream=True, stream_options={"include_usage": True}))
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    joined = "".join((choice.text if item["kind"] == "text" else choice.delta.content) or "" for choice in choices)
    assert joined == item["greedy_text"]
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["length"]
    assert not chunks[-1].choices
    assert chunks[-1].usage.completion_tokens == 64
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert all(chunk.usage is None for chunk in greedy(client, item, stream=True))


def test_tokenizer_gives_the_reference_ids_chat_template_included(exact_package: Path) -> None:
    package = open_package(exact_package)
    tokenizer = Tokenizer.from_file(package.files["tokenizer"], eos_ids=package.eos_token_ids)
    template = ChatTemplate(package.files["chat_template"].read_text(encoding="utf-8"))
    for item in ITEMS:
        if item["kind"] == "text":
            ids = tokenizer.encode(item["prompt"])
        else:
            ids = template.render_ids(item["messages"], tokenizer)
        assert list(ids) == item["prompt_token_ids"]


def test_stop_string_ends_the_text_before_it(client: openai.OpenAI) -> None:
    item = ITEMS[0]
    stop = item["greedy_text"][20:24]
    answer = greedy(client, item, stop=[stop], extra_body={})
    assert text_of(answer) == item["greedy_text"][: item["greedy_text"].index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_model_list_names_what_is_ready(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smollm2-135m"]


def test_unknown_model_is_a_404_with_the_error_object(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="gpt-9", prompt="x")
    assert caught.value.body["code"] == "model_not_found"  # type: ignore[index]

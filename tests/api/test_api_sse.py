"""The order of a stream's events and its one end, without sockets."""

import json

import pytest

from calserve.api.shapes import ChatShape, CompletionShape, Head, Shape
from calserve.api.sse import EventWriter
from calserve.core.outcomes import FinishReason, Usage
from calserve.executor.messages import Delivery, Ending

HEAD = Head("id", 1, "m", 2)


def _text(index: int, text: str) -> tuple[int, Delivery]:
    return index, Delivery("r", text, (1,))


def _end(index: int, reason: FinishReason = FinishReason.STOP) -> tuple[int, Ending]:
    return index, Ending("r", reason, Usage(3, 5))


def _data(rendered: bytes) -> list[str]:
    return [event.removeprefix("data: ") for event in rendered.decode().split("\n\n") if event]


@pytest.fixture(params=[ChatShape, CompletionShape])
def shape(request: pytest.FixtureRequest) -> Shape:
    made: Shape = request.param(HEAD, False, None)
    return made


def test_bad_end_of_one_choice_is_the_last_event_of_all(shape: Shape) -> None:
    writer = EventWriter(shape, 2)
    rendered = writer.render([_text(0, "a"), _end(0, FinishReason.DEVICE_FAULT), _text(1, "late"), _end(1)])
    data = _data(rendered)
    assert "device_fault" in data[-1]
    assert writer.is_ended
    assert "late" not in rendered.decode()
    assert "[DONE]" not in rendered.decode()


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.INTERNAL])
def test_nothing_is_rendered_after_the_end(shape: Shape, reason: FinishReason) -> None:
    writer = EventWriter(shape, 1)
    assert writer.render([_end(0, reason)])
    assert writer.render([_text(0, "late"), _end(0)]) == b""


def test_done_comes_once_after_the_last_choice(shape: Shape) -> None:
    writer = EventWriter(shape, 2)
    assert "[DONE]" not in _data(writer.render([_text(0, "a"), _end(0), _text(1, "b")]))
    assert not writer.is_ended
    assert _data(writer.render([_end(1)]))[-1] == "[DONE]"
    assert writer.is_ended


def test_usage_event_sums_choices_and_counts_a_shared_prompt_once() -> None:
    writer = EventWriter(ChatShape(HEAD, True, None), 2)
    data = _data(writer.render([_end(0), _end(1)]))
    assert json.loads(data[-2]) == {
        "id": "id",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [],
        "usage": {"prompt_tokens": 3, "completion_tokens": 10, "total_tokens": 13},
    }


@pytest.mark.parametrize("text", ['"', "\\", "\x00", "\n\ndata: x", "é\U0001f600", "\x00text", "</script>"])
def test_text_event_escapes_whatever_the_model_says(shape: Shape, text: str) -> None:
    rendered = shape.text(1, text, ())
    assert rendered.count(b"\n") == 2
    choice = json.loads(_data(rendered)[0])["choices"][0]
    assert choice["index"] == 1
    assert choice.get("text", choice.get("delta", {}).get("content")) == text


def test_hostile_model_name_cannot_break_the_cut() -> None:
    shape = ChatShape(Head("id", 1, "\x00text", 1), False, None)
    chunk = json.loads(_data(shape.text(0, "hello", ()))[0])
    assert (chunk["model"], chunk["choices"][0]["delta"]["content"]) == ("\x00text", "hello")

"""The default model against the reference made elsewhere: agreement, and every token id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2.sandbox
import numpy as np
import pytest
from tokenizers import Tokenizer

from calserve.package import open_package
from calserve.package.pack.loop import PagedLoop
from calserve.package.pack.paged import Geometry

REFERENCE = Path(__file__).parent.parent / "data/smollm2-135m-greedy.json"

pytestmark = [pytest.mark.slow, pytest.mark.model]


@pytest.fixture(scope="module")
def items() -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads(REFERENCE.read_bytes())["items"]
    assert len(loaded) == 24
    return loaded


def top1(path: Path, items: list[dict[str, Any]]) -> float:
    """Agreement: argmax against `top5_ids[0]`, one teacher-forced pass over prompt and greedy tokens."""
    package = open_package(path)
    kv = package.kv
    geometry = Geometry(int(kv["n_layers"]), int(kv["n_kv_heads"]), int(kv["head_dim"]))
    loop = PagedLoop(package.files["graph:step"], geometry, dict(package.settings), 256)
    equal = total = 0
    for item in items:
        prompt, greedy = item["prompt_token_ids"], item["greedy_token_ids"]
        logits = loop.step([*prompt, *greedy[:-1]], 0, range(len(prompt) - 1, len(prompt) + len(greedy) - 1))
        best = np.array([step[0] for step in item["top5_ids"]])
        equal += int((logits.argmax(axis=1) == best).sum())
        total += len(best)
    return equal / total


def test_exact_package_agrees_with_the_reference(exact_package: Path, items: list[dict[str, Any]]) -> None:
    assert top1(exact_package, items) >= 0.995


def test_int8_package_agrees_with_the_reference(int8_package: Path, items: list[dict[str, Any]]) -> None:
    assert top1(int8_package, items) >= 0.95


def test_packed_tokenizer_gives_the_reference_ids(int8_package: Path, items: list[dict[str, Any]]) -> None:
    package = open_package(int8_package)
    tokenizer = Tokenizer.from_file(str(package.files["tokenizer"]))
    template = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(
        package.files["chat_template"].read_text()
    )
    kinds = set()
    for item in items:
        text = item.get("prompt") or template.render(messages=item["messages"], add_generation_prompt=True)
        assert tokenizer.encode(text, add_special_tokens=False).ids == item["prompt_token_ids"]
        assert tokenizer.decode(item["greedy_token_ids"]) == item["greedy_text"]
        kinds.add(item["kind"])
    assert kinds == {"text", "chat"}


def test_packed_tokenizer_special_tokens_are_the_gguf_ones(int8_package: Path) -> None:
    tokenizer = Tokenizer.from_file(str(open_package(int8_package).files["tokenizer"]))
    assert tokenizer.get_vocab_size() == 49152
    assert [tokenizer.id_to_token(i) for i in (0, 1, 2)] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert all(tokenizer.get_added_tokens_decoder()[i].special for i in (0, 1, 2))

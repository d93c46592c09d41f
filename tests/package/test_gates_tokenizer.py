"""What a tokenizer may cost: patterns that backtrack without end, and texts that grow."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import package_rig as rig
import pytest
from bad_packages import replace_by, tokenizer_with
from drafts import toy

from calserve.package.gates import inspect
from calserve.package.gates.backtracking import backtracking_complaint
from calserve.text.growth import growth_complaint, growth_of

# As published: GPT-2, GPT-4, GPT-4o, DeepSeek-V3, BLOOM, a run of digits in threes, CLIP, Falcon.
PUBLISHED = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
    r"|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}"
    r"{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))",
    r"\s+",
    r"[0-9][0-9][0-9]",
)


@pytest.mark.parametrize("pattern", PUBLISHED)
def test_published_pattern_is_taken(pattern: str) -> None:
    assert backtracking_complaint(pattern) == ""


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(a+)+$", "itself repeats"),
        ("(?:(?i)a+)+", "itself repeats"),
        ("(?>a+)+b", "itself repeats"),
        ("((a+)?)*", "itself repeats"),
        ("(a|aa)+$", "repeats or chooses"),
        ("(?:a?){30}a{30}", "itself repeats"),
        ("a**", "repeats a repeat"),
        ("a{2}+", "repeats a repeat"),
        ("a?" * 20 + "a" * 20, "4096 ways"),
        ("(a|aa)" * 20, "4096 ways"),
        ("a*a*a*b", "more than 2 repeats"),
        ("a*a*b", "goes on behind 2 repeats"),
        ("a{0,1000}a{0,999}b", "goes on behind 2 repeats"),
        (r"(a)\1+", "refers back"),
        (r"(?<x>a\g<x>*)", r"\g"),
        ("(?~a)", "cost is not known"),
        ("(?(1)a|b)", "cost is not known"),
        ("(?x) (a+)#)\n+", "cost is not known"),
        ("[]a](b+)+]", "begins with its own end"),
    ],
)
def test_pattern_that_may_try_without_end_is_refused(pattern: str, words: str) -> None:
    assert words in backtracking_complaint(pattern)


def _tree(**parts: Any) -> dict[str, Any]:
    return {**json.loads(rig.TOKENIZER), **parts}


# Llama 2, Qwen, BERT, ALBERT: factors by hand (mark before a piece 2, byte level 4, spaces around 3, a pattern 2).
@pytest.mark.parametrize(
    ("parts", "factor"),
    [
        (
            {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                                                replace_by(" ", "▁")]}},
            2,
        ),
        ({"normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}}, 4),
        ({"normalizer": {"type": "BertNormalizer"}}, 3),
        (
            {"normalizer": {"type": "Sequence", "normalizers": [
                {"type": "NFKD"}, {"type": "StripAccents"},
                {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]},
             "pre_tokenizer": {"type": "Metaspace", "replacement": "▁"}},
            4,
        ),
    ],
)  # fmt: skip
def test_published_pipeline_grows_by_its_hand_counted_factor(parts: dict[str, Any], factor: int) -> None:
    assert growth_of(_tree(**parts)).factor == factor
    assert growth_complaint(_tree(**parts)) == ""


def _sequence(count: int, step: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": [step] * count}


def _charsmap(text: str) -> str:
    return base64.b64encode((4).to_bytes(4, "little") + bytes(4) + text.encode() + b"\0").decode()


SPECIAL = {"SpecialToken": {"id": "x", "type_id": 0}}
TEXT = {"Sequence": {"id": "A", "type_id": 0}}


def _template(*single: Any, ids: int = 1) -> dict[str, Any]:
    named = {"x": {"id": "x", "ids": [1] * ids, "tokens": ["w1"] * ids}}
    return {"post_processor": {"type": "TemplateProcessing", "single": list(single), "special_tokens": named}}


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"normalizer": replace_by("a", "b" * 33)}, "33 characters of one"),
        ({"normalizer": replace_by("", "b" * 32)}, "33 characters of one"),
        ({"normalizer": {**replace_by("a", "b" * 32), "pattern": {"Regex": "a*"}}}, "33 characters of one"),
        ({"normalizer": _sequence(6, replace_by("a", "aa"))}, "64 characters of one"),
        ({"normalizer": {"type": "Prepend", "prepend": "b" * 32}}, "33 characters of one"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": _charsmap("b" * 33)}}, "33 characters of one"),
        ({"normalizer": _sequence(3, {"type": "NFKD"})}, "3 Unicode forms"),
        ({"normalizer": _sequence(65, {"type": "NFC"})}, "more than 64 steps"),
        ({"decoder": {"type": "Sequence", "decoders": [replace_by("a", "aaaaaaaa")] * 2}}, "decodes up to 64"),
        (_template(SPECIAL, TEXT, ids=65), "adds 65 ids"),
        (_template(*[TEXT] * 33), "33 characters of one"),
        ({"model": {"type": "WordLevel", "vocab": {"a" * 4097: 0}, "unk_token": "w0"}}, "a token of 4097"),
        ({"model": {"type": "Unigram", "vocab": [["a" * 4097, 0.0]]}}, "a token of 4097"),
        ({"added_tokens": [{"id": 1, "content": "a" * 4097}]}, "a token of 4097"),
        ({"model": {"type": "BPE", "vocab": {}, "end_of_word_suffix": "a" * 65}}, "marks pieces with 65"),
    ],
)
def test_tokenizer_that_grows_a_text_is_refused(parts: dict[str, Any], words: str) -> None:
    assert words in growth_complaint(_tree(**parts))


def test_sequence_of_replaces_that_each_grow_a_little_breaks_e13(tmp_path: Path) -> None:
    draft = toy()
    tokenizer_with(normalizer=_sequence(7, replace_by("a", "a" * 10)))(draft)
    assert [finding.rule.id for finding in inspect(draft.write(tmp_path / "p")).findings] == ["E13"]


def test_infinite_margin_is_no_number(tmp_path: Path) -> None:
    draft = toy()
    root = draft.write(tmp_path / "p")
    text = (root / "goldens.json").read_text()
    (root / "goldens.json").write_text(text.replace("1.5", "1e400"))
    rig.list_files(root)
    (finding,) = inspect(root).findings
    assert (finding.rule.id, finding.sentence) == ("B04", "goldens.json: 1e400 is too large a number.")

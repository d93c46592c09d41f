"""`docs/package.md` is what the schema and the rules say now."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from calserve.package import document
from calserve.package.gates import RULES
from calserve.package.manifest import GraphEntry, ModelEntry

PAGE = Path(__file__).parents[2] / "docs/package.md"
KINDS = [kind for _, kinds in document._PARTS for kind in kinds] + list(document._VERDICT)


def test_package_document_is_current() -> None:
    text = document.package_document()
    assert PAGE.read_text("utf-8") == text, "write it anew: python -m calserve.package.document > docs/package.md"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_field_of_a_package_has_a_meaning(kind: type) -> None:
    summary, meanings = document.field_meanings(kind)
    assert summary
    assert [field.name for field in msgspec.structs.fields(kind) if not meanings.get(field.name)] == []


def test_package_document_names_every_rule_and_bound() -> None:
    text = document.package_document()
    assert [rule.id for rule in RULES.values() if f"| {rule.id} | " not in text] == []
    assert "| `chip_mask` | integer 1 to 2^32 - 1 | every chip its sections may name |" in text
    assert "| `expected_step_ns` | integer 1 to 2^40 or null | time of a whole step" in text


def test_field_meanings_take_several_names_for_one_text() -> None:
    meanings = document.field_meanings(GraphEntry)[1]
    assert meanings["inputs"] == meanings["outputs"] == "every tensor, surplus or missing ones are errors"
    assert document.field_meanings(ModelEntry)[1]["lanes"] == "KV lanes"

"""What a vendor has to deliver for what is not proven, and which run of ours accepts it: data, and who asks for it.

Owns: the format of `vendor.yaml`. Must not know: boards. Life: read once, when somebody asks.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from calserve import strict_yaml
from calserve.accept.conform.proofs import BY_ID
from calserve.runtime.contract import CAPABILITIES

SCHEMA: Literal["calserve-vendor-items/v1"] = "calserve-vendor-items/v1"
FILE = Path(__file__).parent / "vendor.yaml"
Words = Annotated[str, msgspec.Meta(min_length=3, max_length=400)]


class VendorItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """source: where the seed asks for it. unlocks: capabilities. accepted_by: proof ids, or commands of ours."""

    id: Annotated[str, msgspec.Meta(pattern="^V[0-9]{3}$")]
    priority: Literal["P0", "P1"]
    source: Words
    deliver: Words
    unlocks: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    accepted_by: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: Literal["calserve-vendor-items/v1"]
    items: tuple[VendorItem, ...]


@cache
def vendor_items() -> tuple[VendorItem, ...]:
    """All of them. The file ships with us: one that is wrong is a bug, and raises."""
    items = strict_yaml.convert(strict_yaml.parse(FILE.read_text("utf-8")), _File).items
    assert len({item.id for item in items}) == len(items), "two items of one id"
    for item in items:
        assert set(item.unlocks) <= set(CAPABILITIES), f"{item.id} unlocks what there is not: {item.unlocks}"
        unknown = [name for name in item.accepted_by if name not in BY_ID and not name.startswith("calserve ")]
        assert not unknown, f"{item.id} is accepted by what there is not: {unknown}"
    return items


def items_for(capabilities: Collection[str]) -> tuple[VendorItem, ...]:
    """The items that unlock any of `capabilities`, those of P0 first."""
    wanted = [item for item in vendor_items() if set(item.unlocks) & set(capabilities)]
    return tuple(sorted(wanted, key=lambda item: (item.priority, item.id)))

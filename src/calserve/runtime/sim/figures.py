"""What one simulated board is: its chips, graphs, times and proofs, each figure with its source.

Owns: `SimProfile` and which figures go together. Must not know: where a profile was written down, jobs, clocks,
requests. A profile is frozen; a variant is made with `dataclasses.replace`. A figure whose source starts with
"assumed" is nobody's measurement.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

from calserve.runtime.contract import CAPABILITIES, Evidence, InactiveLanePolicy


class ProfileError(ValueError):
    """A board profile that cannot be; the text is one sentence that names the file, where there is one, and the key."""


@dataclass(frozen=True, slots=True)
class SimTiming:
    """How long things take, in ns.

    decode_ns: compute of one step by compiled batch. prefill: base + per token. launch: from `submit` to the
    first DMA. dma: setup + bytes x per KiB, each direction. d2d_token: chip-to-chip traffic per token, only
    in sessions of more than one chip, after the CalCores' share of the step.
    """

    decode_ns: Mapping[int, int]
    prefill_base_ns: int
    prefill_token_ns: int
    launch_ns: int
    dma_setup_ns: int
    dma_ns_per_kib: int
    d2d_token_ns: int
    configure_ns: int
    reset_ns: int

    def dma_ns(self, byte_count: int) -> int:
        return self.dma_setup_ns + byte_count * self.dma_ns_per_kib // 1024


@dataclass(frozen=True, slots=True)
class SimProfile:
    """One kind of board together with the calbin it runs.

    is_assumed: a board nobody has, made up to show what an ability would be worth. Only such a one may claim proofs.
    session_chips: how many chips a compiled graph may span.
    kv_lanes: sequences of KV where decode graphs take the lane of a row as an input; 0 where row i is lane i, and the
    largest decode graph has one row for each.
    kv_block_tokens: the device writes KV in blocks, so a broken job leaves its whole block undefined.
    banks_overlap / chips_overlap: whether jobs in two banks, or on two chips, run at the same time at all.
    calbins_per_board: 1, or one per chip when 2.
    logits_dtype: "float32" or "bfloat16" (host arrays then hold the bit patterns as uint16).
    logits_tile: see `GraphContract.logits_tile`.
    sources: where each figure comes from, by field name; timing figures under their own names.

    Invariants: vocab is a power of two, so that logits can be checked by hand, and at most 256 with bfloat16,
    so that they are exact.
    """

    name: str
    is_assumed: bool
    chips: int
    cores_per_chip: int
    session_chips: tuple[int, ...]
    dram_bytes: int
    weight_bytes: int
    kv_bytes_per_token: int
    workspace_bytes: int
    profiles: tuple[int, ...]
    context: int
    vocab: int
    eos_token_ids: tuple[int, ...]
    logits_dtype: str
    inactive_lane_policy: InactiveLanePolicy
    kv_block_tokens: int
    max_in_flight: int
    banks_overlap: bool
    chips_overlap: bool
    calbins_per_board: int
    timing: SimTiming
    capabilities: Mapping[str, Evidence]
    sources: Mapping[str, str]
    logits_tile: int = 1
    kv_lanes: int = 0
    temperature_c: float | None = None
    power_w: float | None = None
    frequency_hz: float | None = None
    versions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({"runtime": "sim 0.7.6"}))

    def __post_init__(self) -> None:
        proven = [name for name, state in self.capabilities.items() if state is Evidence.C0]
        problems = (
            (self.vocab < 8 or self.vocab & (self.vocab - 1) != 0, "vocab must be a power of two, at least 8"),
            (self.logits_dtype not in ("float32", "bfloat16"), "logits_dtype must be float32 or bfloat16"),
            (self.logits_dtype == "bfloat16" and self.vocab > 256, "bfloat16 logits need vocab <= 256"),
            (not 1 <= self.logits_tile <= 4096, "logits_tile must be in 1..4096"),
            (not all(0 <= token < self.vocab for token in self.eos_token_ids), "eos_token_ids must be below vocab"),
            (set(self.capabilities) != set(CAPABILITIES), "capabilities must state exactly the ones there are"),
            (proven and not self.is_assumed, f"capabilities.{''.join(proven[:1])}: C0 is for profiles with is_assumed"),
            (not self.profiles or tuple(sorted(set(self.profiles))) != self.profiles, "profiles must ascend"),
            (self.profiles[:1] != (1,), "profiles must start with 1"),
            (self.profiles != (1,) and "batch_lanes" not in proven, "profiles beyond 1 need batch_lanes at C0"),
            (set(self.profiles) - set(self.timing.decode_ns), "every profile needs a decode time in decode_ns"),
            (0 < self.kv_lanes < max(self.profiles, default=1), "kv_lanes must not be fewer than the widest profile"),
            (not self.session_chips, "session_chips must not be empty"),
            (any(not 1 <= n <= self.chips for n in self.session_chips), "session_chips beyond the board's chips"),
            (self.max_in_flight not in (1, 2), "max_in_flight must be 1 or 2: there are two banks"),
            (not 1 <= self.calbins_per_board <= self.chips, "calbins_per_board must be in 1..chips"),
            (not 1 <= self.context <= 1 << 20, "context must be in 1..1048576"),
        )
        for is_wrong, sentence in problems:
            if is_wrong:
                raise ProfileError(f"board profile {self.name}: {sentence}.")

    @property
    def lanes(self) -> int:
        """KV lanes of a session."""
        return self.kv_lanes or self.profiles[-1]

    def proves(self, capability: str) -> bool:
        return self.capabilities.get(capability) is Evidence.C0

    def sha256(self) -> str:
        """Of every figure, in one canonical form: equal for two profiles that are the same board, however their files
        are written. Where a figure comes from (`sources`) is words about it and changes nothing."""
        figures = {name: value for name, value in _canonical(self).items() if name != "sources"}
        return hashlib.sha256(json.dumps(figures, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _canonical(value: Any) -> Any:
    """As JSON has it. By field, so that a figure that is added one day cannot be forgotten here."""
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value):
        return {each.name: _canonical(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _canonical(each) for key, each in value.items()}
    return [_canonical(each) for each in value] if isinstance(value, tuple) else value

"""What one simulated board is: its chips, graphs, times and proofs, each figure with its source.

Owns: `SimProfile` and the profiles that ship. Must not know: jobs, clocks, requests. A profile is frozen; a
variant is made with `dataclasses.replace`. A figure whose source starts with "assumed" is nobody's measurement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from calserve.runtime.contract import CAPABILITIES, Evidence, InactiveLanePolicy

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class SimTiming:
    """How long things take, in ns.

    decode_ns: compute of one step by compiled batch. prefill: base + per token. launch: from `submit` to the
    first DMA. dma: setup + bytes x per KiB, each direction. d2d_token: chip-to-chip traffic per token, only
    in sessions of more than one chip.
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

    session_chips: how many chips a compiled graph may span. lanes: KV lanes of the largest decode graph.
    kv_block_tokens: the device writes KV in blocks, so a broken job leaves its whole block undefined.
    banks_overlap / chips_overlap: whether jobs in two banks, or on two chips, run at the same time at all.
    calbins_per_board: 1, or one per chip when 2.
    logits_dtype: "float32" or "bfloat16" (host arrays then hold the bit patterns as uint16).
    sources: where each figure comes from, by field name; timing figures under their own names.

    Invariants: vocab is a power of two, so that logits can be checked by hand, and at most 256 with bfloat16,
    so that they are exact.
    """

    name: str
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
    temperature_c: float | None = None
    power_w: float | None = None
    frequency_hz: float | None = None
    versions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({"runtime": "sim 0.7.6"}))

    def __post_init__(self) -> None:
        problems = (
            (self.vocab < 8 or self.vocab & (self.vocab - 1) != 0, "vocab must be a power of two, at least 8"),
            (self.logits_dtype not in ("float32", "bfloat16"), "logits_dtype must be float32 or bfloat16"),
            (self.logits_dtype == "bfloat16" and self.vocab > 256, "bfloat16 logits need vocab <= 256"),
            (set(self.capabilities) - set(CAPABILITIES), "unknown capability"),
            (not self.profiles or tuple(sorted(set(self.profiles))) != self.profiles, "profiles must ascend"),
            (self.profiles[:1] != (1,), "profiles must start with 1"),
            (set(self.profiles) - set(self.timing.decode_ns), "every profile needs a decode time"),
            (any(n > self.chips for n in self.session_chips), "session_chips beyond the board's chips"),
            (self.max_in_flight not in (1, 2), "max_in_flight must be 1 or 2: there are two banks"),
            (not 1 <= self.context <= 1 << 20, "context must be in 1..1048576"),
        )
        for is_wrong, sentence in problems:
            if is_wrong:
                raise ValueError(f"board profile {self.name}: {sentence}")

    @property
    def lanes(self) -> int:
        return self.profiles[-1]

    def proves(self, capability: str) -> bool:
        return self.capabilities.get(capability) is Evidence.C0


def _states(**named: Evidence) -> Mapping[str, Evidence]:
    return MappingProxyType({name: named.get(name, Evidence.C3) for name in CAPABILITIES})


_TIMES = "decode_ns prefill_base_ns prefill_token_ns launch_ns dma_setup_ns dma_ns_per_kib d2d_token_ns"
_ASSUMED_TIMES = dict.fromkeys(
    (*_TIMES.split(), "configure_ns", "reset_ns"),
    "assumed: no board at hand; of the order of the embedded board's steps",
)
_SMALL_MODEL = {
    "vocab": "assumed: small, so that a simulated token costs microseconds (the real one has 151,936)",
    "eos_token_ids": "assumed: one id of the simulated vocabulary",
    "kv_block_tokens": "assumed: the unit in which a broken job leaves KV undefined",
}

_SEED_WEIGHTS = int(16.938 * GIB)
_SEED_KV_PER_TOKEN = 48 * 4 * 128 * 2 * 2

CALCULET_2CHIP = SimProfile(
    name="calculet-2chip",
    chips=2,
    cores_per_chip=2,
    session_chips=(2,),
    dram_bytes=16 * GIB,
    weight_bytes=_SEED_WEIGHTS,
    kv_bytes_per_token=_SEED_KV_PER_TOKEN,
    workspace_bytes=int(14.075 * GIB) - (_SEED_WEIGHTS + _SEED_KV_PER_TOKEN * 40_960) // 2,
    profiles=(1,),
    context=40_960,
    vocab=64,
    eos_token_ids=(1,),
    logits_dtype="bfloat16",
    inactive_lane_policy=InactiveLanePolicy.VALID_MASK,
    kv_block_tokens=16,
    max_in_flight=1,
    banks_overlap=False,
    chips_overlap=False,
    calbins_per_board=1,
    timing=SimTiming(
        decode_ns=MappingProxyType({1: 20_000_000}),
        prefill_base_ns=10_000_000,
        prefill_token_ns=400_000,
        launch_ns=20_000,
        dma_setup_ns=10_000,
        dma_ns_per_kib=100,
        d2d_token_ns=50_000,
        configure_ns=20_000_000_000,
        reset_ns=2_000_000_000,
    ),
    capabilities=_states(
        concurrent_jobs=Evidence.C1,
        mixed_batch=Evidence.C4,
        kv_trim=Evidence.C1,
        kv_shift=Evidence.C1,
        calcore_affinity=Evidence.C4,
    ),
    sources=MappingProxyType(
        {
            "chips": "seed 000, section 1: one physical board, two chips",
            "cores_per_chip": "seed 004: two CalCores a chip",
            "session_chips": "seed 000, section 8.1: the only calbin is compiled for two chips",
            "dram_bytes": "seed 004: 32 GiB a board, taken as 16 GiB a chip",
            "weight_bytes": "seed 004: 16.938 GiB",
            "kv_bytes_per_token": "seed 004: 48 layers x 4 KV heads x 128 x 2 (K, V) x 2 bytes, 3.750 GiB in all",
            "workspace_bytes": "seed 004: 14.075 GiB reserved a chip, less its half of weights and KV",
            "profiles": "seed 000, section 1: batch 1",
            "context": "seed 003, section 4.1: max_seq 40960",
            "logits_dtype": "seed 003, section 4.1: BF16",
            "max_in_flight": "seed 000, section 1: ping/pong is C1",
            "calbins_per_board": "seed 000, section 9.1: one current calbin",
            **_SMALL_MODEL,
            **_ASSUMED_TIMES,
        }
    ),
)

_LANE_FIGURES = (
    "session_chips weight_bytes kv_bytes_per_token workspace_bytes profiles context logits_dtype "
    "max_in_flight calbins_per_board temperature_c power_w frequency_hz"
)

ASSUMED_LANES = SimProfile(
    name="assumed-lanes",
    chips=2,
    cores_per_chip=2,
    session_chips=(1, 2),
    dram_bytes=16 * GIB,
    weight_bytes=2 * GIB,
    kv_bytes_per_token=32 * 1024,
    workspace_bytes=512 * MIB,
    profiles=(1, 4, 8, 16),
    context=2048,
    vocab=64,
    eos_token_ids=(1,),
    logits_dtype="float32",
    inactive_lane_policy=InactiveLanePolicy.VALID_MASK,
    kv_block_tokens=16,
    max_in_flight=2,
    banks_overlap=True,
    chips_overlap=True,
    calbins_per_board=2,
    timing=SimTiming(
        decode_ns=MappingProxyType({1: 10_000_000, 4: 11_000_000, 8: 13_000_000, 16: 17_000_000}),
        prefill_base_ns=4_000_000,
        prefill_token_ns=100_000,
        launch_ns=20_000,
        dma_setup_ns=10_000,
        dma_ns_per_kib=100,
        d2d_token_ns=10_000,
        configure_ns=3_000_000_000,
        reset_ns=1_000_000_000,
    ),
    capabilities=_states(
        concurrent_jobs=Evidence.C0,
        batch_lanes=Evidence.C0,
        incremental_prefill=Evidence.C0,
        mixed_batch=Evidence.C4,
        concurrent_chips=Evidence.C0,
        chip_reset=Evidence.C0,
        session_reset=Evidence.C0,
        resident_profiles=Evidence.C0,
        calcore_affinity=Evidence.C4,
    ),
    sources=MappingProxyType(
        {
            "chips": "seed 000, section 1",
            "cores_per_chip": "seed 004: two CalCores a chip",
            "dram_bytes": "seed 004: 32 GiB a board, taken as 16 GiB a chip",
            **dict.fromkeys(
                _LANE_FIGURES.split(),
                "assumed: what a vendor's lane calbin might be (C3 in seed 000, section 1)",
            ),
            **_SMALL_MODEL,
            **_ASSUMED_TIMES,
        }
    ),
    temperature_c=55.0,
    power_w=40.0,
    frequency_hz=1_000_000_000.0,
)

PROFILES: Mapping[str, SimProfile] = MappingProxyType(
    {profile.name: profile for profile in (CALCULET_2CHIP, ASSUMED_LANES)}
)

"""What a board is: the seam between calserve and any runtime.

Members name the CalRT 0.7.6 call they stand for. Codes are CalRT's (`runtime.errors`); 0 is success and every
other value is judged by the caller, nothing raises for an operating failure. Life of the main object: a Board
is opened under an exclusive lock, `configure` makes a Session for one package, the session hands out
HostBuffers, `submit` starts a job and gives a Ticket, `wait` ends it, the buffers go back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from calserve.core.board import GraphProfile
from calserve.core.commands import ResetScope
from calserve.core.job import Bank, JobSpec

Code = int


class Evidence(Enum):
    """State of a capability (seed 001, section 4). Only C0 is ever used by the scheduler."""

    C0 = "proven here by a recorded run"
    C1 = "the interface exists, nothing proves it"
    C2 = "can be built on confirmed interfaces"
    C3 = "needs the vendor"
    C4 = "not supported"


CAPABILITIES = (
    "concurrent_jobs",
    "batch_lanes",
    "incremental_prefill",
    "mixed_batch",
    "kv_share",
    "kv_copy",
    "kv_trim",
    "kv_shift",
    "kv_state",
    "concurrent_chips",
    "lane_fault_isolation",
    "chip_reset",
    "session_reset",
    "job_cancel",
    "multi_package",
    "resident_profiles",
    "calcore_affinity",
)


class KvLayout(Enum):
    """LANES: one KV region per row of the graph. PAGED: blocks of `unit_tokens` named by a block table."""

    LANES = "lanes"
    PAGED = "paged"


class InactiveLanePolicy(Enum):
    """What the graph wants in a row nobody uses (never a made-up token 0)."""

    OMIT = "omit"  # the row is simply not there
    VALID_MASK = "valid_mask"  # a tensor int32[batch] marks live rows
    POSITION_MINUS_ONE = "position_minus_one"


@dataclass(frozen=True, slots=True)
class TensorContract:
    """A tensor by its exact name. shape: the largest (compiled) shape; -1 never appears."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # numpy name, or "bfloat16"
    byte_size: int
    sliceable: bool


@dataclass(frozen=True, slots=True)
class GraphContract:
    """One compiled graph. `profile` is what the scheduler may see of it.

    inputs/outputs: by exact name, roles fixed by the layout (see `encoding`).
    csr_names: registers set per job, in the order (current sequence length, total sequence length); empty if none.
    logits_tile: layout of the logits; from metadata, never assumed. 1: plain, [rows, vocab]. T > 1: tiled along the
        vocabulary: the shape is [ceil(vocab / T), rows, T], and element v of row r stands at [v // T, r, v % T].
    min_flat_tokens: a job with fewer tokens is padded by the encoder with a row into a scratch unit.
    expected_step_ns: from the package, or None until measured at warm-up.
    """

    profile: GraphProfile
    kv_layout: KvLayout
    inputs: Mapping[str, TensorContract]
    outputs: Mapping[str, TensorContract]
    csr_names: tuple[str, ...]
    inactive_lane_policy: InactiveLanePolicy | None
    vocab_size: int
    logits_tile: int = 1
    min_flat_tokens: int = 1
    scratch_units: tuple[int, ...] = ()
    expected_step_ns: int | None = None

    @property
    def name(self) -> str:
        return self.profile.name


@dataclass(frozen=True, slots=True)
class Golden:
    """A fixed prompt and its greedy continuation. margins: at each step, how far (in logits) the best token led.

    Checked teacher-forced: step i must give `output_ids[i]` unless its margin is below the package's
    tolerance, so that another processor's rounding is not taken for a broken graph.
    """

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    margins: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PackageSection:
    """A piece of a model's address plan: `byte_count` bytes at `address`, on every chip of `chip_mask`."""

    kind: str  # weights, kv, workspace, code, io or metadata
    chip_mask: int
    address: int
    byte_count: int


@dataclass(frozen=True, slots=True)
class BoardPackage:
    """A package that passed its gates: what `Board.configure` needs, and nothing executable.

    hash: sha256 of `checksums.sha256`; of a model in a combined package, that and the model's name hashed together.
    files: graph and weight files by role, absolute. settings: every numeric hint, explicit. kv: geometry (n_layers,
    n_kv_heads, head_dim, unit_tokens, dtype). chip_mask: bit i set: its graphs run on chip i; with `pinned` on just
    those chips, else on any as many. sections: its address plan, empty where the board places everything itself.
    bundle: of a model in a combined package, the hash of the whole; "" for a model alone.
    """

    root: Path
    hash: str
    model: str
    board: str
    vocab_size: int
    context: int
    max_lanes: int
    profiles: tuple[int, ...]
    numerics: str
    weights: str
    files: Mapping[str, Path]
    settings: Mapping[str, str]
    kv: Mapping[str, int | str]
    weight_bytes: int
    eos_token_ids: tuple[int, ...]
    graphs: tuple[GraphContract, ...] = ()
    goldens: tuple[Golden, ...] = ()
    golden_tolerance: float = 0.0
    chip_mask: int = 1
    pinned: bool = False
    sections: tuple[PackageSection, ...] = ()
    bundle: str = ""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """chips: ids the session may use. lanes/kv_tokens 0 take the package's own. dram_quota: bytes, 0 = none."""

    chips: tuple[int, ...]
    numerics: str = ""
    lanes: int = 0
    kv_tokens: int = 0
    dram_quota: int = 0
    max_in_flight: int = 1


@dataclass(frozen=True, slots=True)
class ChipFacts:
    chip: int
    cores: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class BoardFacts:
    """`proven_by` names the run that proves a C0; a capability not listed is C4. simulated: never hardware's C0.
    figures_sha256: over all figures of a board that is what a file says of it; "" where it is the hardware itself."""

    name: str
    simulated: bool
    chips: tuple[ChipFacts, ...]
    capabilities: Mapping[str, Evidence]
    versions: Mapping[str, str]
    proven_by: Mapping[str, str] = field(default_factory=dict)
    figures_sha256: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """None where the board cannot be read; never 0 in its place. Units: bytes, °C, W, Hz."""

    memory_used: int | None = None
    memory_total: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    frequency_hz: float | None = None
    throttled: bool | None = None
    resets: int | None = None


@dataclass(frozen=True, slots=True)
class Counters:
    """Job queue counters; after a drain pending = left = 0."""

    pending: int
    finished: int
    left: int


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """One phase (h2d, compute, d2d, d2h) of a job on a chip, on the board's clock.

    core: the CalCore of the chip that worked, -1 for a phase that none of them runs. bank: which job bank held it.
    generation: the job's own.
    """

    chip: int
    job: int
    phase: str
    begin_ns: int
    end_ns: int
    core: int = -1
    bank: Bank = Bank.AUTO
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Ticket:
    """The board's own handle of a submitted job, with the generation the board believes it belongs to."""

    number: int
    job: int
    generation: int


class StatusKind(Enum):
    """`OutputBuf::GetStatus()`."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    DONE_CCU_EXCEPTION = "done_ccu_exception"


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What the device reports when `wait` returns: whose completion this is, and where the time went."""

    ticket: Ticket
    generation: int
    status: StatusKind
    h2d_ns: int = 0
    device_ns: int = 0
    d2h_ns: int = 0


class HostBuffers(Protocol):
    """Input and output buffers of one job (`InputBuf`, `OutputBuf`) and the host memory behind them.

    The memory of `host(name)` has one address for the life of the object. Between `submit` and the return of
    `wait` the device owns it. Each operation returns a code.
    """

    graph: str
    bank: Bank

    def host(self, name: str) -> np.ndarray[Any, Any]:
        """Whole backing array of a tensor, at its compiled (largest) shape."""

    def map(self, name: str) -> Code:
        """`MapBuf`: bind the backing memory to the tensor for this job."""

    def slice(self, name: str, shape: tuple[int, ...]) -> Code:
        """`SliceTensor`: only the leading `shape` elements, packed from the start of the memory, take part."""

    def set_csr(self, name: str, value: int) -> Code:
        """`SetCsrByName`."""

    def undo_slices(self) -> Code:
        """`UndoSlice` of every slice."""

    def reset(self) -> Code:
        """`ResetAllTensors`, CSRs cleared, request data gone. A failure quarantines the buffers.

        Inputs become 0; outputs become unreadable as a result (NaN in every row), so that a row the device does
        not write in a later job shows as an error and never as somebody's logits, or as a made-up token 0.
        """

    def output(self, name: str) -> np.ndarray[Any, Any]:
        """View of an output after `wait`, at its sliced shape. Dead when the buffers go back."""


class KvMirror(Protocol):
    """The device's view of KV (`KvManager`). `core`'s ledger decides; this says whether the device agrees."""

    def can_allocate(self, units: int) -> bool:
        """`KvManager::canAllocate`. False is temporary; KvReleased follows."""

    def apply(self, lane: int, units: tuple[int, ...], length: int) -> Code:
        """`KvManager::Apply`: `lane` now holds `units` up to `length` tokens."""

    def release(self, lane: int) -> Code:
        """The lane's units are free again."""


class Session(Protocol):
    """One configured package (`Calbin` + `KvManager`). One thread submits, one waits."""

    name: str
    graphs: Mapping[str, GraphContract]
    kv: KvMirror
    lanes: int
    unit_tokens: int
    kv_units: int

    def allocate(self, graph: str, bank: Bank) -> tuple[Code, HostBuffers | None]: ...

    def submit(self, spec: JobSpec, buffers: HostBuffers) -> tuple[Code, Ticket | None]:
        """`infer` / `infer_with_fixed_task_type`. Never blocks.

        Code 0 with a ticket: started. A code without one: nothing was started. Anything else contradicts itself, and
        the caller takes the job for one that may run.
        """

    def wait(self, ticket: Ticket, timeout_ns: int) -> tuple[Code, JobStatus | None]:
        """`OutputBuf::Wait` then `GetStatus`. Blocks at most `timeout_ns`; code 13 on timeout."""

    def cancel(self, ticket: Ticket) -> Code:
        """Code 27 unless `job_cancel` is proven: CalRT 0.7.6 has no job cancel."""

    def memory(self) -> Mapping[str, int]:
        """Bytes by use: weights, kv, workspace, io."""

    def drain(self, timeout_ns: int) -> Code: ...

    def close(self) -> Code:
        """Release of the calbin and its memory. Refused with code 17 while a job is in flight."""


class Board(Protocol):
    """One physical board, opened exclusively (`CreateVDevice`)."""

    def describe(self) -> BoardFacts: ...

    def health(self) -> Health: ...

    def telemetry(self, chip: int) -> Telemetry: ...

    def counters(self) -> Counters: ...

    def trace(self, since_ns: int) -> tuple[TraceSpan, ...]: ...

    def configure(
        self, package: BoardPackage, options: LoadOptions, name: str, generation: int
    ) -> tuple[Code, Session | None]:
        """`CreateCalbin` + `configure`; slow. Code 7 while a current calbin exists on a one-calbin board.

        A combined package is one calbin (seed 004, section 6): a model whose `package.bundle` is the current one
        becomes a session of it, and nothing is configured again. It stays current until the last of them is closed."""

    def reset(self, scope: ResetScope, session: str | None) -> Code:
        """End what runs within the scope's reach; a code other than 0 says that nothing is known to have ended.

        CCU: the chips of `session`, None for all. Its sessions stay configured, KV stays; writes are not stopped.
        SESSION: `session`, which must be named. It is gone with its KV, buffers and jobs' names, and must be configured
            again; its siblings go on. A job that never returned may still write. Proof: `session_reset`.
        CONFIGURATION: every session of the board, whichever is named; pass None. All are gone. A job that never
            returned may still write, so it is used only where none is out. No proof is needed.
        CHIP: every session on the chips of `session`, None for all chips. They are gone, KV memory is cleared, and no
            job of theirs writes any more. Proof: `chip_reset`.
        BOARD: as CHIP for the whole board, and the one that helps a board that is lost.

        Codes: 27 the scope is not proven or does not exist here, 25 the reset failed, 4 or 16 no such session, 18 the
        board is lost.
        """

    def close(self) -> None:
        """Release the board and its lock."""

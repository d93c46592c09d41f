"""A job, a graph and a set of buffers checked before a device sees them, in the order of seed 003, section 6.3.

Owns: every limit whose breach would make a device read or write outside its memory, or answer for the wrong job. Must
not know: a board, requests' text. Pure; each check gives a code and one sentence with the limit and the value given,
or None. The executor asks before it touches a board; a board may ask the same again, and then both say the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from calserve.core.board import RowBinding
from calserve.core.job import JobSpec, LogitsWanted
from calserve.runtime.contract import (
    Code,
    GraphContract,
    HostBuffers,
    InactiveLanePolicy,
    KvLayout,
    TensorContract,
)
from calserve.runtime.errors import CalCode

Complaint = tuple[Code, str]

# Bytes of an element, and the numpy name of the host array that holds it (bfloat16 as its bit pattern).
ELEMENTS: Mapping[str, tuple[int, str]] = {
    "int8": (1, "int8"),
    "uint8": (1, "uint8"),
    "int32": (4, "int32"),
    "int64": (8, "int64"),
    "float16": (2, "float16"),
    "bfloat16": (2, "uint16"),
    "float32": (4, "float32"),
}
LOGITS_DTYPES = ("float32", "bfloat16")

_LANE_INPUTS = ("tokens", "positions")
_LANE_OPTIONAL = ("counts", "lengths", "kv_lanes", "valid")
_PAGED_INPUTS = (
    "input_ids",
    "position_ids",
    "past_lens",
    "subsequence_begins",
    "block_indices",
    "block_indices_begins",
    "max_context_len",
    "sampled_tokens_indices",
)


@dataclass(frozen=True, slots=True)
class KvRoom:
    """What a session has for KV: lanes, units, and tokens to a unit."""

    lanes: int
    unit_tokens: int
    kv_units: int


# --- the job ------------------------------------------------------------------------------------------------------


def check_job(contract: GraphContract, spec: JobSpec, room: KvRoom) -> Complaint | None:
    """None when `spec` is within the contract. 14: out of range; 22: no such shape; 27: no such task."""
    profile, rows = contract.profile, spec.rows
    for row in rows:
        if not 1 <= row.token_count <= profile.max_row_tokens:
            return int(CalCode.SHAPE_MISMATCH), (
                f"row of {row.request}: {row.token_count} tokens, limit {profile.max_row_tokens}"
            )
    for row in rows:
        # Python's integers do not wrap: this is the sum of the seed in wide integers.
        if row.first_position < 0 or row.first_position + row.token_count > profile.max_tokens:
            end = row.first_position + row.token_count
            return int(CalCode.OUT_OF_RANGE), (
                f"row of {row.request}: positions {row.first_position}..{end}, limit {profile.max_tokens}"
            )
    if not 1 <= len(rows) <= profile.batch:
        return int(CalCode.SHAPE_MISMATCH), f"{len(rows)} rows, limit {profile.batch}"
    if spec.task not in profile.tasks:
        return int(CalCode.NOT_SUPPORTED), f"task {spec.task.value} on graph {profile.name}"
    return _check_places(contract, spec, room) or _check_sizes(contract, spec)


def _check_places(contract: GraphContract, spec: JobSpec, room: KvRoom) -> Complaint | None:
    """Lanes and KV units: each in range, each held once, enough of them for the row's length."""
    profile = contract.profile
    lanes = profile.batch if profile.row_binding is RowBinding.FIXED else room.lanes
    most = -(-profile.max_tokens // room.unit_tokens)
    held: list[int] = []
    for row in spec.rows:
        if not 0 <= row.lane < lanes:
            return int(CalCode.OUT_OF_RANGE), f"row of {row.request}: lane {row.lane}, limit {lanes - 1}"
        end = row.first_position + row.token_count
        if not -(-end // room.unit_tokens) <= len(row.kv_units) <= most:
            wrong = f"row of {row.request}: {len(row.kv_units)} KV units of {room.unit_tokens} for {end} tokens"
            return int(CalCode.OUT_OF_RANGE), wrong
        held += row.kv_units
    if len(spec.rows) > 1 and len({row.lane for row in spec.rows}) != len(spec.rows):
        return int(CalCode.OUT_OF_RANGE), "a lane stands in two rows"
    if min(held) < 0 or max(held) >= room.kv_units or len(set(held)) != len(held):
        return int(CalCode.OUT_OF_RANGE), f"KV units held twice or beyond {room.kv_units - 1}"
    return None


def _check_sizes(contract: GraphContract, spec: JobSpec) -> Complaint | None:
    """What the rows take together."""
    tokens = sum([row.token_count for row in spec.rows])
    if tokens > contract.profile.max_job_tokens:
        return int(CalCode.SHAPE_MISMATCH), f"{tokens} tokens, limit {contract.profile.max_job_tokens}"
    if contract.kv_layout is not KvLayout.PAGED:
        return None
    units = sum([len(row.kv_units) for row in spec.rows])
    wanted = wanted_logits(spec)
    if units > contract.inputs["block_indices"].shape[0]:
        return int(CalCode.SHAPE_MISMATCH), f"{units} KV units, limit {contract.inputs['block_indices'].shape[0]}"
    if wanted > contract.outputs["logits"].shape[0]:
        return int(CalCode.SHAPE_MISMATCH), f"{wanted} logits rows, limit {contract.outputs['logits'].shape[0]}"
    return None


def wanted_logits(spec: JobSpec) -> int:
    """Rows of logits the job asks for."""
    wanted = 0
    for row in spec.rows:
        if row.logits is LogitsWanted.LAST:
            wanted += 1
        elif row.logits is LogitsWanted.ALL:
            wanted += row.token_count
    return wanted


def check_tokens(contract: GraphContract, spec: JobSpec, tokens: Sequence[Sequence[int]]) -> Complaint | None:
    """The ids of each row: as many as the row says, each in the vocabulary. 22: a length; 14: an id."""
    if len(tokens) != len(spec.rows):
        return int(CalCode.SHAPE_MISMATCH), f"ids of {len(tokens)} rows for {len(spec.rows)} rows"
    vocab = contract.vocab_size
    for row, ids in zip(spec.rows, tokens, strict=True):
        if len(ids) != row.token_count:
            return int(CalCode.SHAPE_MISMATCH), f"row of {row.request}: {len(ids)} ids for {row.token_count} tokens"
        least, most = (ids[0], ids[0]) if len(ids) == 1 else (min(ids), max(ids))
        if least < 0 or most >= vocab:
            wrong = least if least < 0 else most
            return int(CalCode.OUT_OF_RANGE), f"row of {row.request}: token id {wrong}, limit {vocab - 1}"
    return None


# --- buffers, once per set ----------------------------------------------------------------------------------------


def check_buffers(contract: GraphContract, buffers: HostBuffers) -> Complaint | None:
    """Every tensor of the contract is there under its exact name, with its dtype, rank, shape and bytes."""
    for name, tensor in (*contract.inputs.items(), *contract.outputs.items()):
        try:
            array = buffers.host(name)
        except KeyError:
            return int(CalCode.INVALID_VALUE), f"the board has no tensor {name}"
        if array.dtype.name != ELEMENTS[tensor.dtype][1]:
            return int(CalCode.DTYPE_MISMATCH), f"tensor {name} is {array.dtype.name}, the contract says {tensor.dtype}"
        if array.shape != tensor.shape:
            return int(CalCode.SHAPE_MISMATCH), f"tensor {name} is {array.shape}, the contract says {tensor.shape}"
        if array.nbytes != tensor.byte_size:
            wrong = f"tensor {name} has {array.nbytes} bytes, the contract says {tensor.byte_size}"
            return int(CalCode.SHAPE_MISMATCH), wrong
    return None


def is_within(tensor: TensorContract, shape: tuple[int, ...]) -> bool:
    """Whether `shape` is a part of the tensor: same rank, no dimension empty or beyond, so never more bytes."""
    if len(shape) == 1 == len(tensor.shape):
        return 1 <= shape[0] <= tensor.shape[0]
    return len(shape) == len(tensor.shape) and all(1 <= n <= m for n, m in zip(shape, tensor.shape, strict=True))


# --- graphs, once per package and session -------------------------------------------------------------------------


class ContractPart(Enum):
    """The part of a contract a complaint is about."""

    TENSOR = "tensor"
    INPUTS = "inputs"
    OUTPUTS = "outputs"
    CSRS = "csrs"
    LOGITS = "logits"
    LANES = "lanes"
    INACTIVE = "inactive"
    LENGTHS = "lengths"


def check_contract(contract: GraphContract) -> str:
    """What keeps a graph from being used at all, in one sentence; empty when nothing does.

    Names are exact: a tensor the layout does not know, or one it needs and does not find, is not looked for under a
    similar name (seed 003, section 10.2).
    """
    complaint = contract_complaint(contract)
    return f"graph {contract.name}: {complaint[1]}" if complaint else ""


def contract_complaint(contract: GraphContract) -> tuple[ContractPart, str] | None:
    """The first complaint of `check_contract` and what it is about; None when there is none."""
    tensors = (*contract.inputs.items(), *contract.outputs.items())
    for name, tensor in tensors:
        wrong = _tensor_complaint(name, tensor)
        if wrong:
            return ContractPart.TENSOR, wrong
    found = _names_complaint(contract)
    if found:
        return found
    wrong = _logits_complaint(contract)
    if wrong:
        return ContractPart.LOGITS, wrong
    return _lanes_complaint(contract) if contract.kv_layout is KvLayout.LANES else None


def _tensor_complaint(name: str, tensor: TensorContract) -> str:
    if tensor.name != name:
        return f"tensor {tensor.name} stands under the name {name}"
    if tensor.dtype not in ELEMENTS:
        return f"tensor {name} has the unknown dtype {tensor.dtype}"
    size = ELEMENTS[tensor.dtype][0]
    for length in tensor.shape:
        size *= length
    if size < 1 or size != tensor.byte_size:
        return f"tensor {name} of shape {tensor.shape} has {tensor.byte_size} bytes, not {size}"
    return ""


def _names_complaint(contract: GraphContract) -> tuple[ContractPart, str] | None:
    lanes = contract.kv_layout is KvLayout.LANES
    needed = set(_LANE_INPUTS if lanes else _PAGED_INPUTS)
    allowed = needed | set(_LANE_OPTIONAL if lanes else ())
    missing, surplus = needed - set(contract.inputs), set(contract.inputs) - allowed
    if missing or surplus:
        return ContractPart.INPUTS, f"inputs missing {sorted(missing)}, not known {sorted(surplus)}"
    if set(contract.outputs) != {"logits"}:
        return ContractPart.OUTPUTS, f"outputs {sorted(contract.outputs)}, only logits are known"
    if len(contract.csr_names) not in (0, 2) or len(set(contract.csr_names)) != len(contract.csr_names):
        return ContractPart.CSRS, f"CSR names {list(contract.csr_names)}, two different ones or none are needed"
    return None


def _logits_complaint(contract: GraphContract) -> str:
    logits, tile, vocab = contract.outputs["logits"], contract.logits_tile, contract.vocab_size
    if logits.dtype not in LOGITS_DTYPES:
        return f"logits of {logits.dtype}, only {' and '.join(LOGITS_DTYPES)} are known"
    if tile < 1 or vocab < 1:
        return f"logits tile {tile} and vocabulary {vocab} must be at least 1"
    shape = logits.shape
    if tile == 1:
        is_right = len(shape) >= 1 and shape[-1] >= vocab
    else:
        is_right = len(shape) == 3 and shape[0] == -(-vocab // tile) and shape[2] == tile
    return "" if is_right else f"logits of shape {shape} for a vocabulary of {vocab} in tiles of {tile}"


def _lanes_complaint(contract: GraphContract) -> tuple[ContractPart, str] | None:
    profile, inputs = contract.profile, contract.inputs
    wide, tall = (profile.batch, profile.max_row_tokens), (profile.batch,)
    for name, tensor in inputs.items():
        expected = wide if name in _LANE_INPUTS else tall
        if tensor.shape != expected:
            return ContractPart.LANES, f"tensor {name} has shape {tensor.shape}, {expected} is needed"
    if profile.batch > 1 and contract.inactive_lane_policy is None:
        return ContractPart.INACTIVE, f"{profile.batch} rows and no policy for the inactive ones"
    if contract.inactive_lane_policy is InactiveLanePolicy.VALID_MASK and "valid" not in inputs:
        return ContractPart.INACTIVE, "a valid mask is promised and there is no tensor for it"
    if profile.row_binding is RowBinding.FREE and "kv_lanes" not in inputs:
        return ContractPart.LANES, "rows are free and there is no tensor for their KV lanes"
    has_lengths = {"counts", "lengths"} <= set(inputs)
    if not has_lengths and (not contract.csr_names or profile.batch > 1):
        return ContractPart.LENGTHS, "neither CSRs nor tensors say how long a row is"
    return None

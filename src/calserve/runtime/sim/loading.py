"""A package about to be configured: whether this board takes it, and what it will hold of the board.

Owns: the checks of `configure` and where a calbin's memory comes from. Must not know: what is current, jobs, time. A
package of this process has no address plan, and its sizes are the profile's; one from a directory brings its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from calserve.runtime.contract import BoardPackage, Code, Evidence, LoadOptions
from calserve.runtime.errors import CalCode
from calserve.runtime.sim.calbin import Calbin
from calserve.runtime.sim.model import ToyHead
from calserve.runtime.sim.package import KEY_SETTING
from calserve.runtime.sim.profile import SimProfile

BANKS = 2  # each with buffers of its own


def check_load(profile: SimProfile, package: BoardPackage, options: LoadOptions) -> Code:
    """Codes: 19 not a package for this board, 5 options it cannot have, 27 beyond what is proven."""
    if not _is_ours(profile, package):
        return CalCode.INVALID_CALBIN
    chips = options.chips
    is_chips_right = len(set(chips)) == len(chips) in profile.session_chips and set(chips) <= set(range(profile.chips))
    if package.sections:
        is_chips_right = is_chips_right and _is_placed(package, chips)
    is_lanes_right = 0 <= options.lanes <= package.max_lanes
    is_kv_right = options.kv_tokens == 0 or options.kv_tokens >= package.context
    is_numerics_right = options.numerics in ("", package.numerics)
    if not (is_chips_right and is_lanes_right and is_kv_right and is_numerics_right):
        return CalCode.INVALID_CONFIG
    # C1 will do: a proof must be able to use the interface that it is to prove. Who may ask is the server's rule.
    has_banks = profile.capabilities["concurrent_jobs"] in (Evidence.C0, Evidence.C1)
    if not 1 <= options.max_in_flight <= (profile.max_in_flight if has_banks else 1):
        return CalCode.NOT_SUPPORTED
    return CalCode.SUCCESS


def _is_ours(profile: SimProfile, package: BoardPackage) -> bool:
    """Compiled for this board: its target, a key and a vocabulary the toy model can have, batches the board times."""
    batches = [graph.profile.batch for graph in package.graphs]
    vocab = package.vocab_size
    key = package.settings.get(KEY_SETTING, "")
    # Without an address plan the profile's context is all that its memory was sized for.
    is_short = bool(package.sections) or package.context <= profile.context
    halves = any(graph.outputs["logits"].dtype == "bfloat16" for graph in package.graphs if "logits" in graph.outputs)
    return (
        package.board == "sim"
        and re.fullmatch("[0-9a-f]{16}", key) is not None
        and bool(batches)
        and set(batches) <= set(profile.timing.decode_ns)
        and is_short
        and vocab >= 8
        and vocab & (vocab - 1) == 0
        and not (halves and vocab > 256)
        and package.kv.get("unit_tokens") == package.context
    )


def _is_placed(package: BoardPackage, chips: tuple[int, ...]) -> bool:
    """Whether a package with an address plan may be on these chips: as many as it is compiled for, or just those."""
    compiled = _chips_of(package.chip_mask)
    if package.pinned:
        return set(chips) == set(compiled)
    return len(chips) == len(compiled)


def make_calbin(profile: SimProfile, package: BoardPackage, options: LoadOptions, name: str, generation: int) -> Calbin:
    """What `configure` would make current."""
    lanes = options.lanes or package.max_lanes
    if options.kv_tokens:
        lanes = min(lanes, options.kv_tokens // package.context)
    chips = tuple(sorted(options.chips))
    if package.sections:
        memory, reserved = _planned(package, chips)
    else:
        memory = _sized(profile, package, lanes, len(chips))
        reserved = dict.fromkeys(chips, -(-sum(memory.values()) // len(chips)))
    return Calbin(
        name=name,
        generation=generation,
        package=package,
        chips=chips,
        lanes=lanes,
        max_in_flight=options.max_in_flight,
        key=int(package.settings[KEY_SETTING], 16),
        head=ToyHead(package.vocab_size),
        memory=MappingProxyType(dict(memory)),
        reserved=MappingProxyType(dict(reserved)),
    )


def _sized(profile: SimProfile, package: BoardPackage, lanes: int, chips: int) -> Mapping[str, int]:
    io_bytes = (sum(t.byte_size for t in (*g.inputs.values(), *g.outputs.values())) for g in package.graphs)
    return {
        "weights": package.weight_bytes,
        "kv": lanes * package.context * profile.kv_bytes_per_token,
        "workspace": profile.workspace_bytes * chips,
        "io": BANKS * max(io_bytes),
    }


def _planned(package: BoardPackage, chips: tuple[int, ...]) -> tuple[Mapping[str, int], Mapping[int, int]]:
    """Bytes by use and by chip. The whole plan is reserved at once, whatever lanes a session asks for.

    Addresses are a chip's own, so a plan that is not pinned goes to other chips as it is: the first it is compiled
    for to the first it is given.
    """
    memory: dict[str, int] = {}
    reserved = dict.fromkeys(chips, 0)
    for at, compiled in enumerate(_chips_of(package.chip_mask)):
        for section in package.sections:
            if section.chip_mask >> compiled & 1:
                memory[section.kind] = memory.get(section.kind, 0) + section.byte_count
                end = section.address + section.byte_count
                reserved[chips[at]] = max(reserved[chips[at]], end)
    return memory, reserved


def _chips_of(mask: int) -> tuple[int, ...]:
    return tuple(chip for chip in range(mask.bit_length()) if mask >> chip & 1)

"""Board profiles as files: the one definition of every simulated board, read with care.

Owns the format `calserve-board-profile/v1` and the profiles that ship in `profiles/`. Must not know what a figure
does (`figures` says which go together). Life: a file is read once, when the board is chosen; a wrong one ends that
with one sentence.

A figure is `{value: ..., source: where it is written}` or `{value: ..., assumed: why this}`; every capability is
stated C0-C4, and C0 only in a profile with `is_assumed: true`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from calserve import strict_yaml
from calserve.runtime.contract import CAPABILITIES, Evidence, InactiveLanePolicy
from calserve.runtime.sim.figures import ProfileError, SimProfile, SimTiming

__all__ = ["ASSUMED_LANES", "CALCULET_2CHIP", "PROFILES", "ProfileError", "SimProfile", "SimTiming", "load_profile"]

SCHEMA = "calserve-board-profile/v1"
FOLDER = Path(__file__).parent / "profiles"
# A golden of the served model is a prompt and 16 tokens; with less than this no prompt of a chunk has room beside it.
CONTEXT_MIN = 32
SUFFIXES = (".yaml", ".yml", ".json")

V = TypeVar("V")
# Beyond these a figure is a slip of the keyboard: 64 TiB, an hour.
Few: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=64)]
Many: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
Token: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)]
Bytes: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 46)]
Nanoseconds: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=3_600_000_000_000)]
Reading: TypeAlias = Annotated[float, msgspec.Meta(ge=-300, le=1e12)]
Words: TypeAlias = Annotated[str, msgspec.Meta(min_length=3, max_length=400)]
Short: TypeAlias = Annotated[str, msgspec.Meta(max_length=100)]
Name: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[a-z0-9][a-z0-9-]{0,63}$")]
Lots: TypeAlias = Annotated[tuple[Few, ...], msgspec.Meta(max_length=16)]


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class _Figure(_Section, Generic[V], frozen=True):
    value: V
    source: Words | None = None
    assumed: Words | None = None


class _Board(_Section, frozen=True):
    chips: _Figure[Few]
    cores_per_chip: _Figure[Few]
    session_chips: _Figure[Lots]
    dram_bytes: _Figure[Bytes]
    weight_bytes: _Figure[Bytes]
    kv_bytes_per_token: _Figure[Bytes]
    workspace_bytes: _Figure[Bytes]
    profiles: _Figure[Lots]
    context: _Figure[Many]
    vocab: _Figure[Many]
    eos_token_ids: _Figure[Annotated[tuple[Token, ...], msgspec.Meta(max_length=16)]]
    logits_dtype: _Figure[Literal["float32", "bfloat16"]]
    logits_tile: _Figure[Annotated[int, msgspec.Meta(ge=1, le=4096)]]
    inactive_lane_policy: _Figure[Literal["valid_mask", "position_minus_one"]]
    kv_block_tokens: _Figure[Many]
    max_in_flight: _Figure[Few]
    banks_overlap: _Figure[bool]
    chips_overlap: _Figure[bool]
    calbins_per_board: _Figure[Few]
    kv_lanes: _Figure[Few] | None = None


class _Timing(_Section, frozen=True):
    decode_ns: _Figure[Annotated[dict[Few, Nanoseconds], msgspec.Meta(max_length=16)]]
    prefill_base_ns: _Figure[Nanoseconds]
    prefill_token_ns: _Figure[Nanoseconds]
    launch_ns: _Figure[Nanoseconds]
    dma_setup_ns: _Figure[Nanoseconds]
    dma_ns_per_kib: _Figure[Nanoseconds]
    d2d_token_ns: _Figure[Nanoseconds]
    configure_ns: _Figure[Nanoseconds]
    reset_ns: _Figure[Nanoseconds]


class _Telemetry(_Section, frozen=True):
    """What is left out reads as None on the board, never as 0."""

    temperature_c: _Figure[Reading] | None = None
    power_w: _Figure[Reading] | None = None
    frequency_hz: _Figure[Reading] | None = None


class _File(_Section, frozen=True):
    schema: str
    name: Name
    is_assumed: bool
    board: _Board
    timing: _Timing
    telemetry: _Telemetry
    capabilities: dict[str, Any]
    versions: Annotated[dict[Short, Short], msgspec.Meta(max_length=16)]


def load_profile(name_or_path: str | Path) -> SimProfile:
    """A profile that ships, by its name, or one in a file.

    Raises:
        ProfileError: one sentence naming the file and the key.
    """
    if (shipped := PROFILES.get(str(name_or_path))) is not None:
        return shipped
    path = Path(name_or_path)
    if path.name == str(name_or_path) and path.suffix not in SUFFIXES and not path.exists():
        ours = ", ".join(PROFILES)
        raise ProfileError(f"There is no board profile {str(name_or_path)[:80]!r}; there are {ours}, or name a file.")
    return _read(path)


def parse_profile(text: str, where: str) -> SimProfile:
    """A profile from its text. where: what an error calls it. Raises ProfileError."""
    try:
        tree = strict_yaml.parse(text)
        if not isinstance(tree, dict) or "schema" not in tree:
            raise strict_yaml.Wrong(f"must be a mapping that starts with 'schema: {SCHEMA}'.")
        if tree["schema"] != SCHEMA:
            raise strict_yaml.Wrong(f"schema must be {SCHEMA}, not {str(tree['schema'])[:80]!r}.")
        profile = _profile(strict_yaml.convert(tree, _File))
        _refuse_unusable(profile)
        return profile
    except (strict_yaml.Wrong, ProfileError) as error:
        raise ProfileError(f"{where}: {error}") from None


def profile_text(path: Path) -> str:
    """What stands in the file of a profile. Raises ProfileError."""
    try:
        return strict_yaml.read_text(path, "board profile")
    except strict_yaml.Wrong as error:
        raise ProfileError(f"{path}: {error}") from None


def _read(path: Path) -> SimProfile:
    return parse_profile(profile_text(path), str(path))


def _profile(file: _File) -> SimProfile:
    sources: dict[str, str] = {}
    board = _figures("board", file.board, sources)
    timing = _figures("timing", file.timing, sources)
    timing["decode_ns"] = MappingProxyType(timing["decode_ns"])
    return SimProfile(
        name=file.name,
        is_assumed=file.is_assumed,
        **{**board, "inactive_lane_policy": InactiveLanePolicy(board["inactive_lane_policy"])},
        **_figures("telemetry", file.telemetry, sources),
        timing=SimTiming(**timing),
        capabilities=_states(file.capabilities),
        sources=MappingProxyType(sources),
        versions=MappingProxyType(file.versions),
    )


def _refuse_unusable(profile: SimProfile) -> None:
    """A board that could be described and never be served on: said when its file is read, not by a session that fails
    to configure or to warm up."""
    chips, batches = profile.session_chips, tuple(sorted(profile.timing.decode_ns))
    affinity = profile.capabilities["calcore_affinity"]
    wanted = min(_bytes_a_chip(profile, n) for n in chips)
    problems = (
        (tuple(sorted(set(chips))) != chips, "board.session_chips must ascend, each number once"),
        (
            batches != profile.profiles,
            f"timing.decode_ns must have a time for each of board.profiles and no other: it has {batches}",
        ),
        (
            profile.context < CONTEXT_MIN,
            f"board.context must be at least {CONTEXT_MIN}, or no golden has room, not {profile.context}",
        ),
        (
            wanted > profile.dram_bytes,
            f"board.dram_bytes is {profile.dram_bytes}, and weights, KV and workspace take {wanted} a chip",
        ),
        (
            affinity not in (Evidence.C3, Evidence.C4),
            f"capabilities.calcore_affinity must be C3 or C4, not {affinity.name}: no call names a CalCore for a job",
        ),
    )
    for is_wrong, sentence in problems:
        if is_wrong:
            raise ProfileError(f"board profile {profile.name}: {sentence}.")


def _bytes_a_chip(profile: SimProfile, chips: int) -> int:
    """Of a session over `chips` with all its lanes, without its buffers."""
    kv = profile.lanes * profile.context * profile.kv_bytes_per_token
    return -(-(profile.weight_bytes + kv + profile.workspace_bytes * chips) // chips)


def _figures(section: str, figures: _Section, sources: dict[str, str]) -> dict[str, Any]:
    """The values of a section by name; where each comes from is added to `sources`."""
    values = {}
    for name in figures.__struct_fields__:
        figure = getattr(figures, name)
        if figure is None:
            continue
        if (figure.source is None) is (figure.assumed is None):
            raise strict_yaml.Wrong(f"{section}.{name} needs one of source (where it is written) and assumed (why).")
        values[name] = figure.value
        sources[name] = figure.source if figure.assumed is None else f"assumed: {figure.assumed}"
    return values


def _states(stated: Mapping[str, Any]) -> Mapping[str, Evidence]:
    for name in stated:
        if name not in CAPABILITIES:
            raise strict_yaml.Wrong(f"capabilities.{name[:80]}: there is no such capability.")
    states = {}
    for name in CAPABILITIES:
        if name not in stated:
            raise strict_yaml.Wrong(f"capabilities.{name} is missing; state it C0 to C4.")
        state = stated[name]
        if not isinstance(state, str) or state not in Evidence.__members__:
            given = repr(state)[:80] if isinstance(state, str | int | float | None) else type(state).__name__
            raise strict_yaml.Wrong(f"capabilities.{name} must be one of C0 to C4, not {given}.")
        states[name] = Evidence[state]
    return MappingProxyType(states)


PROFILES: Mapping[str, SimProfile] = MappingProxyType(
    {path.stem: _read(path) for path in sorted(FOLDER.glob("*.yaml"))}
)
CALCULET_2CHIP = PROFILES["calculet-2chip"]
ASSUMED_LANES = PROFILES["assumed-lanes"]

"""The scheduler's configuration: file, environment and flags in; checked numbers out.

Owns the format `calculet-scheduler/v1` (seed 002, section 15) with our documented additions, and the cross-check
against a package and a board's proofs. Must not know how a number is used. Life: read once at start; a wrong file
ends the start with one sentence.

Sources, later ones win: the defaults of `core.config`, the file, the environment
(`CALSERVE_ADMISSION__MAX_WAITING_REQUESTS=64`, `CALSERVE_MODEL_ALIAS=name`), overrides given as flags
(`admission.max_waiting_requests=64`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

import msgspec

from calserve import strict_yaml
from calserve.core.config import SchedulerConfig, TenantPolicy

SCHEMA = "calculet-scheduler/v1"
ENVIRONMENT_PREFIX = "CALSERVE_"
ALIAS_VARIABLE = "CALSERVE_MODEL_ALIAS"
# What logs and metrics say of a model that is not served.
RESERVED_ALIAS = "unknown"
# Nanoseconds in 64 bits end after 292 years; nobody means more than a day here.
MAX_MS = 86_400_000

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
Milliseconds: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_MS)]
Microseconds: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_MS * 1000)]
Percent: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=100)]
Weight: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1000)]

_DEFAULT = SchedulerConfig()
_NS_PER_MS, _NS_PER_US = 1_000_000, 1_000


class ConfigError(ValueError):
    """The configuration cannot be served; the text is one sentence that names the key."""


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Admission(_Section, frozen=True):
    """max_active_long_prefills is ours: long prompts admitted at once.

    Every bound here is per session, for each session has its own queue: with `--chips 2` the server as a whole
    takes twice as many waiting requests, waiting prompt tokens and long prefills. The same goes for a tenant's.
    """

    max_waiting_requests: Positive = _DEFAULT.max_waiting_requests
    max_waiting_prompt_tokens: Positive = _DEFAULT.max_waiting_prompt_tokens
    deadline_default_ms: Milliseconds = _DEFAULT.deadline_default_ns // _NS_PER_MS
    max_active_long_prefills: Positive = _DEFAULT.max_active_long_prefills


class Queues(_Section, frozen=True):
    """decode_cost_weight is ours: what an output token costs in the fair queue against a prompt token."""

    decode_weight: Weight = _DEFAULT.decode_weight
    short_prefill_weight: Weight = _DEFAULT.short_prefill_weight
    medium_prefill_weight: Weight = _DEFAULT.medium_prefill_weight
    long_prefill_weight: Weight = _DEFAULT.long_prefill_weight
    short_prefill_max_tokens: Positive = _DEFAULT.short_prefill_max_tokens
    medium_prefill_max_tokens: Positive = _DEFAULT.medium_prefill_max_tokens
    decode_cost_weight: Weight = _DEFAULT.decode_cost_weight


class Batch(_Section, frozen=True):
    """Without `profiles` every profile of the package is used. The last two are ours."""

    profiles: tuple[Positive, ...] | None = None
    batching_window_us: Microseconds = _DEFAULT.batching_window_ns // _NS_PER_US
    prefill_chunk_tokens: Positive = _DEFAULT.prefill_chunk_tokens
    tenant_lane_share_percent: Percent = _DEFAULT.tenant_lane_share_percent


class Executor(_Section, frozen=True):
    """All but the first two are ours; see `core.config.SchedulerConfig`."""

    max_inflight: Annotated[int, msgspec.Meta(ge=1, le=2)] | None = None
    fixed_engine: bool = _DEFAULT.fixed_engine
    execution_deadline_factor: Positive = _DEFAULT.execution_deadline_factor
    execution_deadline_floor_ms: Milliseconds = _DEFAULT.execution_deadline_floor_ns // _NS_PER_MS
    queue_deadline_ms: Milliseconds = _DEFAULT.queue_deadline_ns // _NS_PER_MS
    overdue_grace_ms: Milliseconds = _DEFAULT.overdue_grace_ns // _NS_PER_MS
    max_transient_retries: Count = _DEFAULT.max_transient_retries
    transient_backoff_ms: Milliseconds = _DEFAULT.transient_backoff_ns // _NS_PER_MS


class Recovery(_Section, frozen=True):
    """The last two are ours: the longest a lifecycle order may take, and the longest drain before a recovery."""

    max_resets_per_10min: Count = _DEFAULT.max_resets
    restart_on_unknown_dma: bool = _DEFAULT.restart_on_unknown_dma
    lifecycle_deadline_ms: Milliseconds = _DEFAULT.lifecycle_deadline_ns // _NS_PER_MS
    recovery_drain_ms: Milliseconds = _DEFAULT.recovery_drain_ns // _NS_PER_MS


class Tenant(_Section, frozen=True):
    """Ours. 0 means no own limit. Limits are per session, see `Admission`."""

    weight: Weight = 1
    max_active_requests: Count = 0
    max_waiting_requests: Count = 0
    max_waiting_prompt_tokens: Count = 0


class _File(_Section, frozen=True):
    schema: str = SCHEMA
    model_alias: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | None = None
    admission: Admission = Admission()
    queues: Queues = Queues()
    batch: Batch = Batch()
    executor: Executor = Executor()
    recovery: Recovery = Recovery()
    tenants: dict[str, Tenant] = {}


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """What a start needs. model_alias: the name clients use, or None to take the package's own.

    asked_in_flight: `executor.max_inflight` where the operator set it; None leaves it to the evidence.
    """

    scheduler: SchedulerConfig
    model_alias: str | None = None
    asked_in_flight: int | None = None


def load_config(
    path: Path | None,
    environ: Mapping[str, str] = MappingProxyType({}),
    overrides: Mapping[str, str] = MappingProxyType({}),
) -> ServiceConfig:
    """Read, merge and check.

    Args:
        path: a `calculet-scheduler/v1` file, or None for the defaults.
        environ: the process environment; only `CALSERVE_MODEL_ALIAS` and names `CALSERVE_<SECTION>__<KEY>` are
            looked at.
        overrides: dotted key to value, as given by flags.

    Raises:
        ConfigError: one sentence naming file and key.
    """
    tree: dict[str, Any] = {"schema": SCHEMA} if path is None else _read(path)
    where = "the configuration" if path is None else str(path)
    for name, value in sorted(environ.items()):
        section, separator, key = name.removeprefix(ENVIRONMENT_PREFIX).lower().partition("__")
        if name == ALIAS_VARIABLE:
            tree["model_alias"] = value  # a name is a text, also where YAML would read a number
        elif name.startswith(ENVIRONMENT_PREFIX) and separator:
            _override(tree, f"{section}.{key}", value, name)
    for dotted, value in overrides.items():
        _override(tree, dotted, value, dotted)
    if tree.get("schema") != SCHEMA:
        raise ConfigError(f"{where}: schema must be {SCHEMA}, not {str(tree.get('schema'))[:80]!r}.")
    try:
        file = strict_yaml.convert(tree, _File)
    except strict_yaml.Wrong as error:
        raise ConfigError(f"{where}: {error}") from None
    if file.queues.medium_prefill_max_tokens <= file.queues.short_prefill_max_tokens:
        raise ConfigError(
            f"{where}: queues.medium_prefill_max_tokens ({file.queues.medium_prefill_max_tokens}) must exceed "
            f"queues.short_prefill_max_tokens ({file.queues.short_prefill_max_tokens})."
        )
    _check_names(file, where)
    return ServiceConfig(_scheduler(file), file.model_alias, file.executor.max_inflight)


def _check_names(file: _File, where: str) -> None:
    alias = file.model_alias
    if alias == RESERVED_ALIAS:
        raise ConfigError(f"{where}: model_alias must not be {RESERVED_ALIAS!r}, which stands for models not served.")
    if alias is not None and not alias.isprintable():
        raise ConfigError(f"{where}: model_alias must have printable characters only, not {ascii(alias)[:80]}.")
    for name in file.tenants:
        if not name or not name.isprintable():
            raise ConfigError(f"{where}: tenants has the name {ascii(name)[:80]}; it must be printable and not empty.")


def check_profiles(config: SchedulerConfig, available: Collection[int]) -> None:
    """Every profile asked for must be in the package's manifest (seed 002, section 15).

    Raises:
        ConfigError: naming the first one that is not.
    """
    if config.profiles is None:
        return
    if not config.profiles:
        raise ConfigError("batch.profiles is empty; leave it out to use every profile of the package.")
    for batch in config.profiles:
        if batch not in available:
            has = ", ".join(f"B{size}" for size in sorted(available))
            raise ConfigError(f"batch.profiles asks for B{batch}, but the package has only {has}.")


def check_proofs(config: SchedulerConfig, proven: Collection[str]) -> None:
    """A configuration may not ask for more than is proven on this board and package.

    Raises:
        ConfigError: naming the capability.
    """
    asked: list[tuple[bool, str, str]] = [
        (config.max_in_flight > 1, f"executor.max_inflight is {config.max_in_flight}", "concurrent_jobs"),
        (max(config.profiles or (1,)) > 1, f"batch.profiles asks for B{max(config.profiles or (1,))}", "batch_lanes"),
    ]
    for is_asked, what, capability in asked:
        if is_asked and capability not in proven:
            raise ConfigError(f"{what}, but the capability {capability} is not proven on this board for this package.")


def _read(path: Path) -> dict[str, Any]:
    try:
        tree = strict_yaml.parse(strict_yaml.read_text(path, "configuration"))
    except strict_yaml.Wrong as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: must be a mapping that starts with 'schema: {SCHEMA}'.")
    return tree


def _override(tree: dict[str, Any], dotted: str, text: str, source: str) -> None:
    section, separator, key = dotted.partition(".")
    if separator and (section not in _File.__struct_fields__ or section in ("schema", "model_alias")):
        raise ConfigError(f"{source}: there is no section {section!r}.")
    try:
        value = strict_yaml.parse(text)
    except strict_yaml.NoYaml:
        raise ConfigError(f"{source}: {text[:80]!r} is not a value.") from None
    except strict_yaml.Wrong as error:
        raise ConfigError(f"{source}: {error}") from None
    if not separator:
        tree[section] = value
        return
    below = _below(tree, section, section)
    if section == "tenants":
        # A tenant's name may have dots; its keys do not.
        tenant, _, key = key.rpartition(".")
        below = _below(below, tenant, f"{section}.{tenant}")
    below[key] = value


def _below(tree: dict[str, Any], key: str, name: str) -> dict[str, Any]:
    below = tree.setdefault(key, {})
    if not isinstance(below, dict):
        raise ConfigError(f"{name} must be a mapping.")
    return below


def _scheduler(file: _File) -> SchedulerConfig:
    return SchedulerConfig(
        max_waiting_requests=file.admission.max_waiting_requests,
        max_waiting_prompt_tokens=file.admission.max_waiting_prompt_tokens,
        deadline_default_ns=file.admission.deadline_default_ms * _NS_PER_MS,
        max_active_long_prefills=file.admission.max_active_long_prefills,
        decode_weight=file.queues.decode_weight,
        short_prefill_weight=file.queues.short_prefill_weight,
        medium_prefill_weight=file.queues.medium_prefill_weight,
        long_prefill_weight=file.queues.long_prefill_weight,
        short_prefill_max_tokens=file.queues.short_prefill_max_tokens,
        medium_prefill_max_tokens=file.queues.medium_prefill_max_tokens,
        decode_cost_weight=file.queues.decode_cost_weight,
        profiles=file.batch.profiles,
        batching_window_ns=file.batch.batching_window_us * _NS_PER_US,
        prefill_chunk_tokens=file.batch.prefill_chunk_tokens,
        tenant_lane_share_percent=file.batch.tenant_lane_share_percent,
        max_in_flight=file.executor.max_inflight or _DEFAULT.max_in_flight,
        fixed_engine=file.executor.fixed_engine,
        execution_deadline_factor=file.executor.execution_deadline_factor,
        execution_deadline_floor_ns=file.executor.execution_deadline_floor_ms * _NS_PER_MS,
        queue_deadline_ns=file.executor.queue_deadline_ms * _NS_PER_MS,
        overdue_grace_ns=file.executor.overdue_grace_ms * _NS_PER_MS,
        max_transient_retries=file.executor.max_transient_retries,
        transient_backoff_ns=file.executor.transient_backoff_ms * _NS_PER_MS,
        max_resets=file.recovery.max_resets_per_10min,
        restart_on_unknown_dma=file.recovery.restart_on_unknown_dma,
        lifecycle_deadline_ns=file.recovery.lifecycle_deadline_ms * _NS_PER_MS,
        recovery_drain_ns=file.recovery.recovery_drain_ms * _NS_PER_MS,
        tenants=MappingProxyType({name: TenantPolicy(**msgspec.structs.asdict(t)) for name, t in file.tenants.items()}),
    )

"""The configuration: the seed's file as written there, defaults, overrides, and mistakes by name."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calserve.cli.app import app
from calserve.core.config import SchedulerConfig, TenantPolicy
from calserve.service.config import ConfigError, check_profiles, check_proofs, load_config

# Seed 002, section 15, as it stands there.
SEED = """\
schema: calculet-scheduler/v1
model_alias: qwen3
admission:
  max_waiting_requests: 128
  max_waiting_prompt_tokens: 262144
  deadline_default_ms: 120000
queues:
  decode_weight: 8
  short_prefill_weight: 4
  medium_prefill_weight: 2
  long_prefill_weight: 1
  short_prefill_max_tokens: 512
  medium_prefill_max_tokens: 4096
batch:
  profiles: [1]
  batching_window_us: 0
executor:
  max_inflight: 1
  fixed_engine: false
recovery:
  max_resets_per_10min: 2
  restart_on_unknown_dma: true
"""


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str | bytes) -> Path:
        path = tmp_path / "scheduler.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_seed_file_gives_the_defaults_with_its_profile(write) -> None:
    config = load_config(write(SEED))
    assert config.model_alias == "qwen3"
    assert config.scheduler == SchedulerConfig(profiles=(1,))


def test_no_file_gives_the_seeds_values() -> None:
    scheduler = load_config(None).scheduler
    assert scheduler == SchedulerConfig()
    assert (scheduler.max_waiting_requests, scheduler.max_waiting_prompt_tokens) == (128, 262_144)
    assert (scheduler.deadline_default_ns, scheduler.max_resets) == (120_000_000_000, 2)


def test_units_become_nanoseconds(write) -> None:
    text = "schema: calculet-scheduler/v1\nadmission: {deadline_default_ms: 5}\nbatch: {batching_window_us: 7}\n"
    scheduler = load_config(write(text)).scheduler
    assert (scheduler.deadline_default_ns, scheduler.batching_window_ns) == (5_000_000, 7_000)


def test_tenants_are_read(write) -> None:
    text = "schema: calculet-scheduler/v1\ntenants: {gold: {weight: 4, max_active_requests: 2}}\n"
    scheduler = load_config(write(text)).scheduler
    assert scheduler.tenant("gold") == TenantPolicy(weight=4, max_active_requests=2)
    assert scheduler.tenant("other") == TenantPolicy()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("schema: calculet-scheduler/v1\nadmision: {}\n", ["admision"]),
        ("schema: calculet-scheduler/v1\nbatch: {profile: [1]}\n", ["batch", "profile"]),
        ("schema: calculet-scheduler/v1\nqueues: {decode_weight: 0}\n", ["queues.decode_weight"]),
        ("schema: calculet-scheduler/v1\nqueues: {decode_weight: '8'}\n", ["queues.decode_weight", "int"]),
        ("schema: calculet-scheduler/v1\nqueues: {decode_weight: 8.5}\n", ["queues.decode_weight"]),
        ("schema: calculet-scheduler/v1\nexecutor: {max_inflight: 3}\n", ["executor.max_inflight"]),
        ("schema: calculet-scheduler/v1\nexecutor: {fixed_engine: 1}\n", ["executor.fixed_engine", "bool"]),
        ("schema: calculet-scheduler/v1\nbatch: {profiles: 8}\n", ["batch.profiles"]),
        ("schema: calculet-scheduler/v1\nbatch: {profiles: [0]}\n", ["batch.profiles"]),
        ("schema: calculet-scheduler/v1\nbatch: {batching_window_us: -1}\n", ["batch.batching_window_us"]),
        ("schema: calculet-scheduler/v1\ntenants: {a: {wait: 1}}\n", ["wait"]),
        ("schema: calculet-scheduler/v1\nadmission: {deadline_default_ms: 99999999999}\n", ["deadline_default_ms"]),
        ("schema: calculet-scheduler/v1\nadmission: 5\n", ["admission"]),
        ("schema: calculet-scheduler/v2\n", ["schema", "v1", "v2"]),
        ("model_alias: x\n", ["schema"]),
        ("schema: calculet-scheduler/v1\nmodel_alias: ''\n", ["model_alias"]),
        ("schema: calculet-scheduler/v1\nbatch: {profiles: [1]}\nbatch: {profiles: [2]}\n", ["batch", "twice"]),
        ("- a\n", ["mapping"]),
        ("", ["mapping"]),
        ("a: [", ["YAML"]),
        ("a: !!python/object/apply:os.system [ls]", ["YAML"]),
        (b"\xff\xfe\x00", ["YAML"]),
        ("[" * 1500, ["YAML"]),
        ("[" * 3000, ["nested too deeply"]),
        ("schema: calculet-scheduler/v1\nadmission: {max_waiting_requests: 2020-13-45}\n", ["month"]),
        ("schema: calculet-scheduler/v1\nadmission: {max_waiting_requests: " + "1" * 5000 + "}\n", ["YAML"]),
        ("schema: calculet-scheduler/v1\n? [a]\n: 1\n", ["line 2", "list or a mapping"]),
        ("schema: calculet-scheduler/v1\n{a: 1}: 1\n", ["line 2", "list or a mapping"]),
        ('schema: calculet-scheduler/v1\nmodel_alias: "a\\uD800"\n', ["model_alias", "printable"]),
        ('schema: calculet-scheduler/v1\nmodel_alias: "a\\n"\n', ["model_alias", "printable"]),
        ("schema: calculet-scheduler/v1\nmodel_alias: unknown\n", ["model_alias", "unknown"]),
        ('schema: calculet-scheduler/v1\ntenants: {"": {}}\n', ["tenants", "empty"]),
        (
            "schema: calculet-scheduler/v1\nqueues: {short_prefill_max_tokens: 600, medium_prefill_max_tokens: 600}\n",
            ["medium_prefill_max_tokens", "600"],
        ),
    ],
)
def test_mistake_is_one_sentence_that_names_the_key(write, text: str | bytes, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(write(text))
    sentence = str(error.value)
    assert "scheduler.yaml" in sentence
    assert "\n" not in sentence
    assert "<unicode string>" not in sentence
    for word in words:
        assert word in sentence


def test_file_that_is_missing_or_a_directory_is_one_sentence(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError) as error:
            load_config(path)
        assert str(path) in str(error.value)


def test_file_that_is_no_regular_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero")):
        with pytest.raises(ConfigError, match=r"not a regular file"):
            load_config(path)


def test_alias_comes_from_the_environment_and_other_names_of_ours_are_no_configuration(write) -> None:
    environ = {"CALSERVE_MODEL_ALIAS": "5", "CALSERVE_RUNTIME_DIR": "/x", "CALSERVE_MODELS": "/y"}
    assert load_config(write(SEED), environ).model_alias == "5"
    assert load_config(write(SEED), environ, {"model_alias": "flag"}).model_alias == "flag"


def test_override_below_a_value_that_is_no_mapping_is_named(write) -> None:
    with pytest.raises(ConfigError, match=r"tenants\.a must be a mapping"):
        load_config(write("schema: calculet-scheduler/v1\ntenants: {a: 5}\n"), {}, {"tenants.a.weight": "2"})


def test_environment_overrides_the_file_and_flags_override_both(write) -> None:
    environ = {
        "CALSERVE_ADMISSION__MAX_WAITING_REQUESTS": "64",
        "CALSERVE_BATCH__PROFILES": "[1, 4]",
        "CALSERVE_LOG": "json",
        "PATH": "/bin",
    }
    scheduler = load_config(write(SEED), environ).scheduler
    assert (scheduler.max_waiting_requests, scheduler.profiles) == (64, (1, 4))
    flags = {"admission.max_waiting_requests": "32", "model_alias": "m", "tenants.gold.weight": "3"}
    config = load_config(write(SEED), environ, flags)
    assert (config.scheduler.max_waiting_requests, config.model_alias) == (32, "m")
    assert config.scheduler.tenant("gold").weight == 3


@pytest.mark.parametrize(
    ("environ", "flags", "word"),
    [
        ({"CALSERVE_ADMISSION__MAX_WAITNG": "1"}, {}, "max_waitng"),
        ({"CALSERVE_ADMISION__X": "1"}, {}, "admision"),
        ({"CALSERVE_ADMISSION__MAX_WAITING_REQUESTS": "many"}, {}, "max_waiting_requests"),
        ({}, {"foo": "1"}, "foo"),
        ({}, {"foo.bar": "1"}, "foo"),
        ({}, {"batch.profiles": "["}, "batch.profiles"),
        ({}, {"schema.x": "1"}, "schema"),
        ({}, {"admission.max_waiting_requests": "2020-13-45"}, "max_waiting_requests"),
        ({}, {"admission.max_waiting_requests": "1" * 5000}, "max_waiting_requests"),
        ({}, {"admission.max_waiting_requests": "[" * 3000}, "max_waiting_requests"),
        ({}, {"admission.max_waiting_requests": "{[a]: 1}"}, "max_waiting_requests"),
        ({}, {"tenants.weight": "2"}, "tenants"),
    ],
)
def test_wrong_override_is_named(environ: dict[str, str], flags: dict[str, str], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        load_config(None, environ, flags)


def test_profile_the_package_lacks_stops_the_start() -> None:
    check_profiles(SchedulerConfig(), (1, 4))
    check_profiles(SchedulerConfig(profiles=(1, 4)), (1, 4))
    with pytest.raises(ConfigError, match=r"B8, but the package has only B1, B4"):
        check_profiles(SchedulerConfig(profiles=(1, 8)), (4, 1))
    with pytest.raises(ConfigError, match="empty"):
        check_profiles(SchedulerConfig(profiles=()), (1,))


def test_more_than_is_proven_stops_the_start_with_the_capability() -> None:
    check_proofs(SchedulerConfig(), ())
    check_proofs(SchedulerConfig(max_in_flight=2, profiles=(4,)), {"concurrent_jobs", "batch_lanes"})
    with pytest.raises(ConfigError, match="concurrent_jobs"):
        check_proofs(SchedulerConfig(max_in_flight=2), {"batch_lanes"})
    with pytest.raises(ConfigError, match="batch_lanes"):
        check_proofs(SchedulerConfig(profiles=(1, 4)), {"concurrent_jobs"})


@pytest.mark.parametrize("host", ["", "  "])
def test_empty_host_is_refused_before_anything_is_loaded(host: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["serve", "--model", str(tmp_path), "--host", host])
    assert result.exit_code == 1
    assert "--host" in result.output


def test_deadlines_of_the_executor_and_of_recovery_are_milliseconds_and_never_nothing(write) -> None:
    text = SEED.replace("fixed_engine: false", "fixed_engine: false\n  queue_deadline_ms: 250").replace(
        "restart_on_unknown_dma: true", "restart_on_unknown_dma: true\n  lifecycle_deadline_ms: 60000"
    )
    scheduler = load_config(write(text)).scheduler
    assert (scheduler.queue_deadline_ns, scheduler.lifecycle_deadline_ns) == (250_000_000, 60_000_000_000)
    with pytest.raises(ConfigError, match=r"executor.queue_deadline_ms: Expected `int` >= 1"):
        load_config(write(text.replace("queue_deadline_ms: 250", "queue_deadline_ms: 0")))

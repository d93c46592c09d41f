"""The serving bench: every side loaded once, then asked in turn, repeat after repeat."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from calserve.bench.hashing import measure_hashing, print_hashing
from calserve.bench.host import measure_host, print_host
from calserve.bench.peer_ir import peer_ir
from calserve.bench.report import Samples, histogram_percentile, print_table, write_json
from calserve.bench.sides import BenchError, ServerProcess, SideProcess
from calserve.bench.workload import Work, make_prompts
from calserve.package.reader import open_package
from calserve.progress import Progress
from calserve.runtime.contract import BoardPackage
from calserve.text.tokenizer import Tokenizer

IDLE_HISTOGRAM = "calserve_job_turnaround_seconds"
KV_ELEMENT_BYTES = 2  # float16, what packages ask of the board
PEERS = ("genai", "genai-hints")
PARTS = ("all", "served", "host", "package")
SERVED = {"greedy": (0.0, 1.0), "sampled": (0.8, 0.95)}


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """source: the GGUF the package was made from, for the peer's IR; None leaves the peer out and says so.

    part: "served", "host" (what a step costs the host), "package" (hashing against sha256sum), or "all". pairs: of
    executor and loop, at each batch, and of hashing.
    """

    model: Path
    source: Path | None
    streams: Sequence[int] = (1, 4, 8, 16)
    repeats: int = 5
    prompt_tokens: int = 64
    new_tokens: int = 128
    json_path: Path | None = None
    cache: Path = Path("build/peers")
    part: str = "all"
    pairs: int = 8


def run_bench(options: BenchOptions, progress: Progress, console: Console) -> None:
    """Measure and print; the two parts one after the other, each with nothing else loaded."""
    if options.part not in PARTS:
        raise BenchError(f"There is no part {options.part!r}; there are {', '.join(PARTS)}.")
    hashing = _run_hashing(options, progress, console) if options.part in ("all", "package") else {}
    if options.part == "package":
        if options.json_path is not None:
            write_json(options.json_path, [], {"hashing": hashing})
        return
    package = open_package(options.model)
    if options.prompt_tokens + options.new_tokens > package.context:
        most = package.context - options.prompt_tokens
        raise BenchError(f"--new-tokens is at most {most} with this package's context, not {options.new_tokens}.")
    tokenizer = Tokenizer.from_file(package.files["tokenizer"])
    samples: list[Samples] = []
    facts: dict[str, Any] = {"hashing": hashing} if hashing else {}
    if options.part != "host":
        samples, served = _run_served(options, package, tokenizer, progress, console)
        facts |= served
    host: dict[str, Any] = {}
    if options.part != "served":
        costs = measure_host(options.model, tokenizer, options.pairs, progress)
        print_host(costs, console)
        host = costs.as_json()
    if options.json_path is not None:
        write_json(options.json_path, samples, facts, host)


def _run_hashing(options: BenchOptions, progress: Progress, console: Console) -> dict[str, Any]:
    samples = measure_hashing(options.model, options.pairs, progress)
    print_hashing(samples, console)
    return samples.as_json()


def _run_served(
    options: BenchOptions, package: BoardPackage, tokenizer: Tokenizer, progress: Progress, console: Console
) -> tuple[list[Samples], dict[str, Any]]:
    """Sides alternate within a repeat, so that a slow minute hits all of them."""
    server = ServerProcess.start(options.model)
    sides: dict[str, SideProcess] = {}
    try:
        sides["client"] = SideProcess.start(
            "client", options.model, "--port", str(server.port), "--alias", package.model
        )
        sides["raw"] = SideProcess.start("raw", options.model)
        sides["bare"] = SideProcess.start("bare", options.model)
        if options.source is not None and importlib.util.find_spec("openvino_genai"):
            ir = peer_ir(package, options.source, options.cache, progress)
            for peer in PEERS:
                sides[peer] = SideProcess.start(peer, options.model, "--ir", str(ir))
        else:
            console.print("peer left out: it needs the extras `pack` and `peers`, and --source")
        samples = []
        for streams in options.streams:
            prompts = make_prompts(tokenizer, streams, options.prompt_tokens)
            samples.append(_measure(options, prompts, sides, progress))
        facts = _facts(server, package)
    finally:
        for side in sides.values():
            side.stop()
        facts_code = server.stop()
    names = [n for n in ("bare", "raw", *SERVED, *PEERS) if n in samples[0].rates]
    print_table(samples, names, console)
    for name, value in facts.items():
        console.print(f"{name}: {value}")
    console.print(f"server exit code: {facts_code}")
    return samples, facts


def _measure(
    options: BenchOptions,
    prompts: tuple[tuple[int, ...], ...],
    sides: dict[str, SideProcess],
    progress: Progress,
) -> Samples:
    samples = Samples(len(prompts))
    works = {name: Work(prompts, options.new_tokens, *how) for name, how in SERVED.items()}
    others = [name for name in sides if name != "client"]
    turns = [(name, sides[name], works["greedy"]) for name in others]
    turns += [(name, sides["client"], work) for name, work in works.items()]
    label = f"{len(prompts)} streams"
    with progress.step(label, options.repeats + 1, "rounds") as step:
        for repeat in range(options.repeats + 1):
            order = turns if repeat % 2 else turns[::-1]
            for name, side, work in order:
                # A side has been idle while the others ran: its caches are theirs. The first run of a turn brings
                # them back and is not counted; nor is the first round, which warms every side.
                side.ask(work)
                if repeat:
                    _keep(samples, name, side.ask(work))
            step.advance(1)
    return samples


def _keep(samples: Samples, name: str, answer: dict[str, Any]) -> None:
    samples.rates.setdefault(name, []).append(answer["tokens"] / answer["seconds"])
    for kind, into in (("ttft", samples.ttft), ("tpot", samples.tpot)):
        if kind in answer:
            into.setdefault(name, []).extend(answer[kind])


def _facts(server: ServerProcess, package: BoardPackage) -> dict[str, Any]:
    kv = package.kv
    per_token = 2 * int(kv["n_layers"]) * int(kv["n_kv_heads"]) * int(kv["head_dim"]) * KV_ELEMENT_BYTES
    pool = per_token * package.max_lanes * package.context
    text = server.metrics()
    idle = {f"p{int(q * 100)}": histogram_percentile(text, IDLE_HISTOGRAM, q) for q in (0.5, 0.99)}
    return {
        "job end to next submit, ms": {k: round(1e3 * v, 3) for k, v in idle.items() if v is not None},
        "server resident MiB": server.resident_bytes() >> 20,
        "allowed MiB (weights x 2.5 + KV pool + 500)": (int(package.weight_bytes * 2.5) + pool >> 20) + 500,
        "package weights MiB": package.weight_bytes >> 20,
        "KV pool MiB": pool >> 20,
    }

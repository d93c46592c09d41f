"""`calserve serve`: a package, a board and a port put together, from the first check to the exit code."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from calserve.accept.claims import claims_of, load_claims, why_no_claims, why_one_job
from calserve.accept.evidence import CONCURRENT_JOBS, allowed_in_flight
from calserve.accept.proven import ProvenBoard
from calserve.api.app import build_app
from calserve.api.server import bind, serve
from calserve.cli.boards import BoardFlags, Chosen, chosen_board, read_board
from calserve.cli.refusals import REFUSED, Refusal, say
from calserve.core.engine import Engine
from calserve.core.events import Load
from calserve.core.outcomes import Failure, FaultClass
from calserve.core.snapshot import SessionView
from calserve.core.states import GenerationState
from calserve.core.supervisor import EXIT_UNKNOWN_DMA
from calserve.executor.executor import EXIT_BROKEN_INVARIANT, BoardExecutor, ExecutorParts
from calserve.observe.metrics import Metrics
from calserve.observe.record_log import RecordLog
from calserve.observe.requests import Measures
from calserve.progress import Progress, choose_progress
from calserve.runtime.contract import Board, BoardPackage, Evidence, LoadOptions
from calserve.service.bridge import Bridge
from calserve.service.catalogue import Catalogue, ServedModel
from calserve.service.config import ServiceConfig, check_profiles, check_proofs, load_config
from calserve.service.service import Service
from calserve.text.chat import ChatTemplate
from calserve.text.tokenizer import Tokenizer

# The engine and the completion thread hand over 50-100 times a second; the default of 5 ms between switches
# would stand in every hand-over while the event loop is busy.
SWITCH_INTERVAL_S = 0.0005
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What the flags said. overrides: dotted configuration keys. drain_s: what open streams get at SIGTERM."""

    board: BoardFlags
    host: str
    port: int
    config: Path | None
    overrides: Mapping[str, str]
    drain_s: float
    evidence: Path | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that exists before the event loop does."""

    chosen: Chosen
    served: ServedModel[BoardPackage]
    config: ServiceConfig
    board: Board
    sessions: Mapping[str, LoadOptions]
    listening: socket.socket
    started: float


class NotLoaded(Refusal):
    """No session of the model came up; `failure` is the first one's."""

    def __init__(self, sentence: str, failure: Failure | None) -> None:
        super().__init__(sentence)
        self.failure = failure


def run_serve(options: ServeOptions) -> int:
    """Serve until told to end; the process's exit code. Raises Refusal, PackageError, BoardBusy, ConfigError."""
    started = time.monotonic()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    config = load_config(options.config, os.environ, options.overrides)
    claims = load_claims(options.evidence) if options.evidence is not None else None
    evidence = claims.jobs if claims is not None else None
    progress = choose_progress()
    with ExitStack() as held:
        with progress.step("Checking the package"):
            chosen = held.enter_context(chosen_board(options.board))
        check_profiles(config.scheduler, chosen.package.profiles)
        served = _served_model(chosen.package, config.model_alias or chosen.package.model)
        listening = held.enter_context(closing(_listen(options)))
        opened = held.enter_context(closing(chosen.open()))
        facts, package_hash = opened.describe(), chosen.package.hash
        allowed = allowed_in_flight(config.asked_in_flight, facts, package_hash, evidence)
        if isinstance(allowed, str):
            raise Refusal(allowed)
        if doubt := why_no_claims(claims, facts, package_hash):
            _log.warning("%s is not used: %s", options.evidence, doubt)
        elif doubt := why_one_job(claims, config.asked_in_flight, facts, package_hash):
            _log.warning("%s is not used, one job in flight: %s", options.evidence, doubt)
        config = replace(config, scheduler=replace(config.scheduler, max_in_flight=allowed))
        stated = claims_of(claims, facts, package_hash)
        for lowered in sorted(name for name, claim in stated.items() if claim.state is not Evidence.C0):
            _log.warning("%s: %s is not proven here and is not used", options.evidence, lowered)
        board = ProvenBoard(opened, CONCURRENT_JOBS, str(options.evidence) if allowed > 1 else "", stated)
        check_proofs(config.scheduler, _proven(board))
        sessions = chosen.load_options(config.scheduler.max_in_flight)
        parts = Parts(chosen, served, config, board, sessions, listening, started)
        return _run_loop(parts, progress, int(options.drain_s * 1e9))


def _listen(options: ServeOptions) -> socket.socket:
    try:
        return bind(options.host, options.port)
    except (OSError, OverflowError) as error:
        detail = getattr(error, "strerror", None) or str(error)
        raise Refusal(f"Cannot listen on {options.host} port {options.port}: {detail}.") from None


def _run_loop(parts: Parts, progress: Progress, drain_ns: int) -> int:
    import uvloop

    return uvloop.run(_serve(parts, progress, drain_ns))


async def _serve(parts: Parts, progress: Progress, drain_ns: int) -> int:
    bridge = Bridge(asyncio.get_running_loop())
    catalogue = Catalogue([parts.served])
    measures = Measures((parts.served.alias,))
    executor = BoardExecutor(
        ExecutorParts(
            board=parts.board,
            engine=Engine(parts.config.scheduler),
            outlet=bridge,
            open_package=catalogue.open_package,
            options=parts.sessions,
            clock=time.monotonic_ns,
            recorders=(measures, RecordLog()),
        )
    )
    bridge.connect(executor.post)
    service = Service(bridge, catalogue, parts.config.scheduler, time.monotonic_ns)
    metrics = Metrics(measures, lambda: read_board(parts.board, executor.buffer_counts()))
    app = build_app(service, metrics.render, is_simulated=parts.board.describe().simulated)
    executor.start()
    for name in parts.sessions:
        executor.post(Load(name, parts.served.alias, parts.chosen.package.hash))
    announcing = asyncio.create_task(_announce(parts, bridge, service, progress))
    code = EXIT_BROKEN_INVARIANT
    try:
        code = await serve(app, service, parts.listening, drain_ns)
        code = _exit_code(announcing, parts.served.alias, bridge, code)
        return code
    finally:
        announcing.cancel()
        if not executor.close():
            # A thread is held by a board that does not answer. Unwinding would wait for it too.
            logging.shutdown()
            os._exit(code)


async def _announce(parts: Parts, bridge: Bridge, service: Service, progress: Progress) -> None:
    """Say when the model is served and how to try it. Where no session came up, end the service and raise NotLoaded."""
    with progress.step(f"Loading {parts.served.alias} on {parts.chosen.about}"):
        while len(views := bridge.sessions) < len(parts.sessions) or not _settled(views):
            await bridge.wait_sessions_changed()
        failed = [view for view in views if view.state is GenerationState.FAILED]
        ready = tuple(view for view in views if view.state is GenerationState.READY)
        if not ready:
            service.begin_shutdown(0)
            raise NotLoaded(_load_failure(parts.served.alias, failed[0].failure), failed[0].failure)
    _settle_garbage()
    print(_ready_text(parts, ready), flush=True)
    for view in failed:
        serving = " and ".join(each.session for each in ready)
        say(f"{_load_failure(view.session, view.failure)} {parts.served.alias} is served by {serving} alone.")


def _load_failure(what: str, failure: Failure | None) -> str:
    """One sentence of what the board said; of a library's many lines the last is the reason."""
    if failure is None:
        return f"{what} could not be loaded."
    lines = [line.strip() for line in failure.detail.splitlines() if line.strip()]
    reason = lines[-1][:300].rstrip(".") if lines else "no reason was given"
    return f"{what} could not be loaded: {failure.stage} failed with code {failure.code}: {reason}."


def _exit_code(announcing: asyncio.Task[None], alias: str, bridge: Bridge, code: int) -> int:
    """Exit code of a service that has ended, and the sentence of one that ended before its model was served.

    What `core` ordered stands (`code`). Without an order, only what the next start would meet again is a refusal: a
    supervisor does not repeat that.
    """
    error = announcing.exception() if announcing.done() else None
    if isinstance(error, NotLoaded):
        say(str(error))
        return code or (_LOAD_EXITS.get(error.failure.fault) if error.failure else None) or EXIT_UNKNOWN_DMA
    if announcing.done():
        announcing.result()
    elif code:  # ordered in the moment of the failure
        failed = [view.failure for view in bridge.sessions if view.failure is not None]
        say(_load_failure(alias, failed[0] if failed else None))
    return code


# Exit code of a load that failed for good and left no order to end, by its class; any other may go next time.
_LOAD_EXITS: Mapping[FaultClass, int] = MappingProxyType(
    {
        FaultClass.ARTIFACT: REFUSED,
        FaultClass.COMPATIBILITY: REFUSED,
        FaultClass.REQUEST: REFUSED,
        FaultClass.PROGRAMMING: EXIT_BROKEN_INVARIANT,
    }
)


def _settle_garbage() -> None:
    """What was loaded stays: without this a full collection walks all of it and holds every thread for milliseconds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


def _settled(views: tuple[SessionView, ...]) -> bool:
    return all(view.state in (GenerationState.READY, GenerationState.FAILED) for view in views)


def _ready_text(parts: Parts, views: tuple[SessionView, ...]) -> str:
    host, port = parts.listening.getsockname()[:2]
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    base = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}"
    lanes = sum(view.lanes_total for view in views)
    took = time.monotonic() - parts.started
    package = parts.chosen.package
    body = {
        "model": parts.served.alias,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 64,
        "temperature": 0,
    }
    return (
        f"{parts.served.alias} is ready on {base} after {took:.1f} s: {parts.chosen.about}, {package.weights} "
        f"{package.numerics}, {lanes} lanes of {package.context} tokens\n"
        f"curl {base}/v1/chat/completions -H 'Content-Type: application/json' -d '{json.dumps(body)}'"
    )


def _served_model(package: BoardPackage, alias: str) -> ServedModel[BoardPackage]:
    try:
        tokenizer = Tokenizer.from_file(package.files["tokenizer"], eos_ids=package.eos_token_ids)
    except ValueError as error:
        raise Refusal(f"{package.root}: {error}") from None
    text = package.files["chat_template"].read_text(encoding="utf-8")
    names = {"eos_token": tokenizer.decode(package.eos_token_ids[:1], skip_special=False)}
    template = ChatTemplate(text, names) if text else None
    return ServedModel(alias, package, tokenizer, template)


def _proven(board: Board) -> frozenset[str]:
    states = board.describe().capabilities
    return frozenset(name for name, state in states.items() if state is Evidence.C0)

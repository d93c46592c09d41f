"""A whole server over a scripted engine: real sockets, uvicorn and the service; only the board's side is played.

`ScriptedEngine` stands where the executor stands: it takes posts and answers through the outlet, and a test decides
when. Everything a test waits for has a bound and is signalled; nothing sleeps.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
import uvloop
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as HfTokenizer

from calserve.api.app import build_app
from calserve.api.generate import BodyLimits
from calserve.api.server import bind, serve
from calserve.core.config import SchedulerConfig
from calserve.core.events import Cancel, ClientStalled, Shutdown
from calserve.core.outcomes import Failure, FinishReason, Refusal, RefusalKind, Usage
from calserve.core.snapshot import EngineSnapshot, SessionView
from calserve.core.states import GenerationState
from calserve.executor.messages import Delivery, Ending, Inspect, Submission
from calserve.service.bridge import Bridge
from calserve.service.catalogue import Catalogue, ServedModel
from calserve.service.service import Service
from calserve.text import ChatTemplate, Tokenizer

PATIENCE_S = 10.0
MODEL = "toy"
CONTEXT = 64
# Wider than the tokenizer, as real packages are: ids in between are valid and have no text.
LOGITS_WIDTH = 300
EOS = 257
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """One token per byte (ids 0-255), then <|im_start|> 256 and <|im_end|> 257."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = HfTokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<|im_start|>", "<|im_end|>")])
    return Tokenizer(raw.to_str(), eos_ids=(EOS,))


@dataclass(frozen=True)
class ToyPackage:
    hash: str = "a" * 64
    vocab_size: int = LOGITS_WIDTH
    context: int = CONTEXT
    profiles: tuple[int, ...] = (1, 4)
    eos_token_ids: tuple[int, ...] = (EOS,)


def session_view(state: GenerationState = GenerationState.READY, **changes: object) -> SessionView:
    values: dict[str, object] = {
        "session": "s0",
        "model": MODEL,
        "package": "a" * 64,
        "generation": 1,
        "state": state,
        "waiting_requests": 0,
        "waiting_prompt_tokens": 0,
        "running_requests": 0,
        "jobs_in_flight": 0,
        "oldest_job_submitted_ns": None,
        "lanes_total": 4,
        "lanes_by_state": {"free": 4},
        "kv_units_total": 16,
        "kv_units_held": 0,
        "kv_units_reserved": 0,
        "context_tokens": CONTEXT,
        "queues": (),
        "waiting_reason": "",
    }
    return SessionView(**(values | changes))  # type: ignore[arg-type]


Script = Callable[["ScriptedEngine", Submission], None]


def says(*texts: str, reason: FinishReason = FinishReason.STOP) -> Script:
    """A script: each text as one delivery of one token, then the end."""

    def script(engine: ScriptedEngine, submission: Submission) -> None:
        for text in texts:
            engine.say(submission.event.request, text)
        engine.end(submission.event.request, reason)

    return script


def begins(text: str) -> Script:
    """A script: one delivery, which lets a stream's status line leave; the test says what follows."""

    def script(engine: ScriptedEngine, submission: Submission) -> None:
        engine.say(submission.event.request, text)

    return script


def silent(engine: ScriptedEngine, submission: Submission) -> None:
    """A script: the test itself says what follows."""


@dataclass
class ScriptedEngine:
    """Plays executor and core: one ending per request, cancels end what is open, an over-long prompt is refused."""

    script: Script = field(default_factory=lambda: says("Hello", " world"))
    post_error: Exception | None = None
    answers_inspect: bool = True
    snapshot: EngineSnapshot = field(default_factory=lambda: EngineSnapshot((session_view(),), {}))
    bridge: Bridge | None = None
    submissions: list[Submission] = field(default_factory=list)
    posts: list[object] = field(default_factory=list)
    open: dict[str, int] = field(default_factory=dict)  # request -> tokens said
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def post(self, message: object) -> None:
        if self.post_error is not None:
            raise self.post_error
        with self._changed:
            self.posts.append(message)
            self._changed.notify_all()
        match message:
            case Submission():
                self._submit(message)
            case Cancel(request=request) | ClientStalled(request=request):
                self.end(request, FinishReason.CANCELLED)
            case Inspect():
                if self.answers_inspect:
                    message.reply(self.snapshot)
            case Shutdown():
                if not self.open:
                    self.outlet.exit(0, "drained")

    @property
    def outlet(self) -> Bridge:
        assert self.bridge is not None
        return self.bridge

    def say(self, request: str, text: str, choices: tuple = (), offsets: tuple[int, ...] = ()) -> None:
        self.say_many([Delivery(request, text, (65,), choices, offsets)])

    def say_many(self, deliveries: list[Delivery]) -> None:
        with self._changed:
            for delivery in deliveries:
                self.open[delivery.request] += len(delivery.tokens)
        self.outlet.deliver(deliveries)

    def end(
        self,
        request: str,
        reason: FinishReason,
        refusal: Refusal | None = None,
        failure: Failure | None = None,
    ) -> None:
        with self._changed:
            said = self.open.pop(request, None)
            if said is None:
                return
            prompt = next(s.event.prompt_tokens for s in self.submissions if s.event.request == request)
            self._changed.notify_all()
        self.outlet.deliver([Ending(request, reason, Usage(prompt, said), refusal, failure)])

    def wait_post(self, kind: type, count: int = 1) -> object:
        """The count-th message of a kind, once it has come."""
        with self._changed:
            found = self._changed.wait_for(
                lambda: len([m for m in self.posts if isinstance(m, kind)]) >= count, PATIENCE_S
            )
            assert found, f"no {kind.__name__} came; there were {self.posts}"
            return [m for m in self.posts if isinstance(m, kind)][count - 1]

    def wait_idle(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: not self.open, PATIENCE_S), f"still open: {self.open}"

    def _submit(self, submission: Submission) -> None:
        event = submission.event
        with self._changed:
            self.submissions.append(submission)
            self.open[event.request] = 0
        given = event.prompt_tokens + (event.max_new_tokens or 1)
        if given > CONTEXT:
            refusal = Refusal(RefusalKind.TOO_LONG, limit=CONTEXT, given=given)
            self.end(event.request, FinishReason.REFUSED, refusal)
        else:
            self.script(self, submission)


class Served:
    """A running server. `url` and `engine` are for tests; `close` drains it and returns its exit code."""

    def __init__(self, scheduler: SchedulerConfig = SchedulerConfig()) -> None:  # noqa: B008 - it is frozen
        self.engine = ScriptedEngine()
        self.scheduler = scheduler
        self.now_ns = 1_000_000_000
        self.metrics_snapshots: list[EngineSnapshot | None] = []
        self._started = threading.Event()
        self._code: int | None = None
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)
        self._thread.start()
        assert self._started.wait(PATIENCE_S)
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            self._code = runner.run(self._main())

    async def _main(self) -> int:
        self.loop = asyncio.get_running_loop()
        bridge = Bridge(self.loop)
        self.engine.bridge = bridge
        bridge.connect(self.engine.post)
        model = ServedModel(MODEL, ToyPackage(), byte_tokenizer(), ChatTemplate(CHATML))
        self.service = Service(bridge, Catalogue([model]), self.scheduler, lambda: self.now_ns)
        self.bridge = bridge
        app = build_app(self.service, self._render, BodyLimits(max_bytes=1 << 20), unix_time=lambda: 1_700_000_000.0)
        sock = bind("127.0.0.1", 0)
        self.port = sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        bridge.sessions_changed([session_view()])
        sock.listen()  # so that the first client waits for the server in place of being turned away
        self.loop.call_soon(self._started.set)
        return await serve(app, self.service, sock, takes_signals=False)

    def _render(self, snapshot: EngineSnapshot | None) -> bytes:
        self.metrics_snapshots.append(snapshot)
        return b"calserve_up 1\n"

    def on_loop(self, call: Callable[..., object], *args: object) -> object:
        """Call something on the server's loop and wait for it."""

        async def run() -> object:
            return call(*args)

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(PATIENCE_S)

    def close(self) -> int | None:
        self.client.close()
        if self._thread.is_alive():
            for request in tuple(self.engine.open):
                self.engine.end(request, FinishReason.CANCELLED)
            self.loop.call_soon_threadsafe(self.bridge.end_process, 0, "test over", FinishReason.SHUTDOWN)
            self._thread.join(PATIENCE_S)
        return self._code

    def wait_closed(self) -> int | None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self._code

    def post(self, path: str, **body: object) -> httpx.Response:
        return self.client.post(path, json=body)

    def complete(self, **body: object) -> httpx.Response:
        return self.post("/v1/completions", **({"model": MODEL, "prompt": "hi"} | body))

    def chat(self, **body: object) -> httpx.Response:
        return self.post(
            "/v1/chat/completions", **({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]} | body)
        )


def events(body: str) -> list[str]:
    """The data of each server-sent event, in order."""
    assert body.endswith("\n\n")
    return [event.removeprefix("data: ") for event in body[:-2].split("\n\n")]


def chunks(body: str) -> list[dict]:
    """The JSON events of a stream that ended with [DONE]."""
    data = events(body)
    assert data[-1] == "[DONE]"
    assert data.count("[DONE]") == 1
    return [json.loads(event) for event in data[:-1]]

"""The clients: open-loop arrivals in bursts, what each asks for, and what it does while it reads.

Owns: the requests of a run and their habits. Must not know: what is right (the oracle's), how a server works. Life: a
burst brings requests; each is told to the oracle, submitted, read, perhaps given up, and forgotten at its end.

A request is drawn from a stream of its own, by its number, so that it is the same whatever the server did before.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from functools import partial

from calserve.core.events import Cancel, CancelCause, ClientStalled, Submit
from calserve.executor.messages import Delivery, Ending, Submission
from calserve.executor.sequence import GenerationParams, Sequence
from calserve.sampling.params import SamplingParams
from calserve.service.answer import Answer
from calserve.simulate.alphabet import text_of
from calserve.simulate.judge import MODEL
from calserve.simulate.oracle import ClientRequest, Oracle
from calserve.simulate.plan import SECOND, TrafficPlan, stream
from calserve.simulate.process import ServerProcess
from calserve.simulate.sometimes import Sometimes
from calserve.simulate.world import World
from calserve.text.tokenizer import Tokenizer

TENANTS = ("alpha", "alpha", "beta", "gamma", "default")
_TAIL = 64  # tokens a usual output may have at most


@dataclass(frozen=True, slots=True)
class Market:
    """What clients may know: the model's limits, and the run's seed."""

    seed: int
    era: int
    vocab: int
    context: int
    eos_ids: tuple[int, ...]
    tokenizer: Tokenizer
    deadline_default_ns: int


@dataclass(slots=True, eq=False)
class Client:
    """One request's client. give_up_after: tokens after which it goes away; -1 never. way: how. answer: where it reads
    nothing before the end, what the server gathers for it."""

    request: ClientRequest
    give_up_after: int = -1
    way: str = ""
    received: int = 0
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who hears of clients: the oracle, the counters of rare paths, and who reads the ends."""

    oracle: Oracle
    sometimes: Sometimes
    ended: Callable[[Client, str], None]


class Clients:
    """Invariants: a live client has exactly one request at the current server process."""

    def __init__(self, world: World, market: Market, traffic: TrafficPlan, listeners: Listeners) -> None:
        self._world = world
        self._market = market
        self._traffic = traffic
        self._to = listeners
        self._habits = frozenset(traffic.habits)
        self._arrivals = stream(market.seed, "arrivals")
        self._number = 0
        self._in_era = 0
        self._until_ns = 0
        self.live: dict[str, Client] = {}
        self._twins: set[str] = set()  # names that a second request came under
        self.server: ServerProcess | None = None  # None: connections are refused
        self.refused_connections = 0
        self.long_prompts = 0  # of half the context and more
        self.outputs = 0  # requests that ended by themselves, and their tokens
        self.output_tokens = 0

    def listen(self, listeners: Listeners) -> None:
        """Another oracle judges from here on."""
        self._to = listeners

    @property
    def submitted(self) -> int:
        return self._number

    def open(self, market: Market, traffic: TrafficPlan, until_ns: int) -> None:
        """Traffic of an era, until its end."""
        self._market, self._traffic = market, traffic
        # counted and drawn anew: eras before this one may be left out, and it stays as it is
        self._arrivals = stream(market.seed, f"arrivals/{market.era}")
        self._in_era = 0
        self._habits = frozenset(traffic.habits)
        self._until_ns = until_ns
        now = self._world.now_ns()
        self._world.at(now + self._gap(traffic.burst_gap_ns), partial(self._burst, until_ns))
        self._world.at(now + self._gap(traffic.storm_gap_ns), partial(self._storm, until_ns))

    def _gap(self, mean_ns: int) -> int:
        return mean_ns // 2 + self._arrivals.randrange(mean_ns)

    def _burst(self, until_ns: int) -> None:
        now = self._world.now_ns()
        if now >= until_ns:
            return
        r = self._arrivals
        for _ in range(1 + r.randrange(2 * self._traffic.burst_size - 1)):
            self._world.at(now + r.randrange(self._traffic.burst_ns), self._arrive)
        self._world.at(now + self._gap(self._traffic.burst_gap_ns), partial(self._burst, until_ns))

    def _storm(self, until_ns: int) -> None:
        now = self._world.now_ns()
        if now >= until_ns:
            return
        self._to.sometimes.mark("storm")
        for _ in range(self._traffic.storm_size):
            self._world.at(now + self._arrivals.randrange(SECOND // 10), self._arrive)
        self._world.at(now + self._gap(self._traffic.storm_gap_ns), partial(self._storm, until_ns))

    # --- one request ------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        if self.server is None:
            self.refused_connections += 1
            return
        self._number += 1
        self._in_era += 1
        number = f"{self._market.era}.{self._in_era}"
        r = stream(self._market.seed, f"request/{number}")
        client, params, event = self._draw(f"r{number}", r)
        self.live[client.request.name] = client
        self.long_prompts += 2 * len(client.request.prompt) >= self._market.context
        self._to.oracle.submitted(client.request)
        sequence = Sequence(client.request.name, client.request.prompt, params, self._market.tokenizer)
        self.server.post(Submission(event, sequence))
        if client.way == "cancel_early":
            self._world.after(r.randrange(40_000_000), partial(self._give_up, client))
        if self._has("duplicate_name", r, 0.004):
            self._send_twin(event, params)
        if "cancel_unknown" in self._habits and r.random() < 0.01:
            self.server.post(Cancel(f"ghost{number}", CancelCause.ASKED))

    def _send_twin(self, event: Submit, params: GenerationParams) -> None:
        """Somebody else takes a name that is in use. Where the first one has just ended it is a request like any, so
        it is one that cannot be served: whatever is told of it then is its own end."""
        prompt = (0,) * (self._market.context + 1)
        self._twins.add(event.request)
        twin = Sequence(event.request, prompt, params, self._market.tokenizer)
        assert self.server is not None
        self.server.post(Submission(replace(event, prompt_tokens=len(prompt)), twin))

    def _has(self, habit: str, r: random.Random, chance: float) -> bool:
        """One draw whether or not the habit is there: leaving one out moves no other."""
        return r.random() < chance and habit in self._habits

    def _draw(self, name: str, r: random.Random) -> tuple[Client, GenerationParams, Submit]:
        market, now = self._market, self._world.now_ns()
        prompt_tokens, new_tokens = self._draw_lengths(r)
        prompt = tuple(r.randrange(market.vocab) for _ in range(prompt_tokens))
        ignores_eos = r.random() < 0.5
        min_tokens = r.randrange(new_tokens + 1) if r.random() < 0.2 else 0
        is_sampled = self._has("sampled", r, 0.1)
        seed = r.randrange(1 << 32)
        stops = tuple(r.sample(range(market.vocab), 2)) if self._has("stop_tokens", r, 0.06) else ()
        words = ("".join(text_of(r.randrange(market.vocab)) for _ in range(1 + r.randrange(2))),)
        has_words = self._has("stop_strings", r, 0.08)
        logprobs = r.randrange(3) if self._has("logprobs", r, 0.08) else None
        temperature = round(0.2 + r.random(), 3) if is_sampled else 0.0
        deadline_ns, asked_ns = self._draw_deadline(r, now)
        model = "nobody" if self._has("unknown_model", r, 0.004) else MODEL
        no_length = self._has("no_length", r, 0.004)
        tenant = r.choice(TENANTS)
        request = ClientRequest(
            name=name, tenant=tenant, model=model, prompt=prompt, max_new_tokens=new_tokens, min_tokens=min_tokens,
            temperature=temperature, seed=seed, stop_token_ids=stops, eos_ids=market.eos_ids, ignore_eos=ignores_eos,
            deadline_ns=deadline_ns, submitted_ns=now, stop_strings=words if has_words else (),
            is_whole=self._has("whole_answer", stream(market.seed, f"whole/{name}"), 0.15),
        )  # fmt: skip
        if no_length:
            new_tokens = max(1, market.context - prompt_tokens)
            request = replace(request, max_new_tokens=new_tokens)
        params = GenerationParams(
            SamplingParams(temperature=temperature, seed=seed, logprobs=logprobs), new_tokens, market.vocab,
            min_tokens, ignores_eos, market.eos_ids, stops, request.stop_strings,
        )  # fmt: skip
        asked_tokens = None if no_length else new_tokens
        event = Submit(name, tenant, model, prompt_tokens, asked_tokens, now, asked_ns, request.is_whole)
        return self._with_habit(request, r), params, event

    def _draw_lengths(self, r: random.Random) -> tuple[int, int]:
        context = self._market.context
        prompt = r.randrange(1, 24) if r.random() < 0.9 else r.randrange(24, max(25, context * 2 // 3))
        mean = self._traffic.mean_output
        drawn = r.randrange(2 * mean) if r.random() < 0.95 else int(r.expovariate(0.5 / mean))
        output = 1 + min(drawn, _TAIL, context - prompt - 1)
        if self._has("to_the_context", r, 0.006):
            prompt = r.randrange(context * 2 // 3, context - 1)
            output = context - prompt
        elif self._has("too_long", r, 0.006):
            prompt = context + r.randrange(3)
        return prompt, output

    def _draw_deadline(self, r: random.Random, now: int) -> tuple[int, int | None]:
        """(what holds, what is asked for)."""
        if self._has("short_deadline", r, 0.02):
            deadline = now + r.randrange(2_000_000, 300_000_000)
            return deadline, deadline
        if self._has("past_deadline", r, 0.002):
            return now - 1, now - 1
        return now + self._market.deadline_default_ns, None

    def _with_habit(self, request: ClientRequest, r: random.Random) -> Client:
        client = Client(request, answer=Answer() if request.is_whole else None)
        chance = r.random()
        after = 1 + r.randrange(8)
        for share, way in ((0.015, "cancel_early"), (0.055, "cancel_midway"), (0.06, "cancel_twice"), (0.068, "stall")):
            if chance < share:
                is_possible = way != "stall" or client.answer is None  # who reads all at once does not stop in between
                if way in self._habits and is_possible:
                    client.way = way
                    client.give_up_after = -1 if way == "cancel_early" else after
                break
        return client

    def _give_up(self, client: Client) -> None:
        if client.request.name not in self.live or self.server is None:
            return
        name = client.request.name
        self._to.oracle.cancelled(name, self._world.now_ns())
        if client.way == "stall":
            self._to.sometimes.mark("stalled_reader")
            self.server.post(ClientStalled(name))
            return
        self.server.post(Cancel(name, CancelCause.CLIENT_GONE))
        if client.way == "cancel_twice":
            self.server.post(Cancel(name, CancelCause.ASKED))

    # --- what comes back --------------------------------------------------------------------------------

    def deliver(self, batch: Many[Delivery | Ending]) -> None:
        now, oracle = self._world.now_ns(), self._to.oracle
        for item in batch:
            client = self.live.get(item.request)
            if client is not None and client.answer is not None:
                client.answer.take(item)
            if isinstance(item, Delivery):
                if item.is_anew:
                    oracle.starts_over(item.request, now)
                oracle.received(item.request, item.tokens, item.text, now)
                if client is not None:
                    self._hear(client, item)
            elif client is not None or item.request not in self._twins:
                self._end(item, now)

    def _hear(self, client: Client, item: Delivery) -> None:
        client.received = len(item.tokens) + (0 if item.is_anew else client.received)
        if client.received == client.give_up_after:
            self._give_up(client)

    def _end(self, ending: Ending, now: int) -> None:
        reason = ending.reason.value
        detail = ending.refusal.kind.value if ending.refusal is not None else ""
        if ending.failure is not None:
            detail = f"{ending.failure.stage} {ending.failure.code}"
        client = self.live.pop(ending.request, None)
        if client is not None and client.answer is not None and reason in ("stop", "length"):
            self._to.oracle.answered(ending.request, "".join(client.answer.text), now)
        self._to.oracle.ended(ending.request, reason, detail, ending.usage.completion_tokens, now)
        if client is None:
            return
        if reason in ("stop", "length"):
            self.outputs += 1
            self.output_tokens += ending.usage.completion_tokens
            if len(client.request.prompt) + ending.usage.completion_tokens == self._market.context:
                self._to.sometimes.mark("to_the_context")
        self._to.ended(client, f"{reason} {detail}".strip())

    def lose_server(self) -> None:
        """The process died: every open connection breaks."""
        now, self.server = self._world.now_ns(), None
        for name, client in list(self.live.items()):
            del self.live[name]
            self._to.oracle.ended(name, "process_ended", "", client.received, now)
            self._to.ended(client, "process_ended")

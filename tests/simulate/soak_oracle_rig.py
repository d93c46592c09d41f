"""A hand-made history for the oracle: one session of four lanes, told fact by fact at literal times.

Times are in milliseconds here. Right tokens come from the plain oracle of the simulated model, never from the code
under test.
"""

from dataclasses import dataclass, field, replace

from calserve.core.job import Bank, JobSpec, LogitsWanted, Row, Task
from calserve.runtime.sim.facts import DeviceFact, FactKind, RowFact
from calserve.runtime.sim.oracle import greedy_tokens
from calserve.simulate.oracle import ClientRequest, Oracle, World

MS = 1_000_000
VOCAB = 64
EOS = 1
MODEL = "sim-model"
WORLD = World(
    models={"m": MODEL},
    sessions={"s0": "m"},
    vocab=VOCAB,
    context=64,
    lanes_per_session=4,
    max_in_flight=1,
    text_of=lambda token: chr(33 + token),
    host_slack_ns=100 * MS,
    told_slack_ns=100 * MS,
    cancel_slack_ns=100 * MS,
    deadline_slack_ns=100 * MS,
    backoff_bound_ns=200 * MS,
    drain_bound_ns=1_000 * MS,
    recovery_bound_ns=2_000 * MS,
    load_bound_ns=3_000 * MS,
    max_waiting_requests=8,
    max_waiting_prompt_tokens=100,
)
CHIPS = (0,)


def ask(name: str = "r1", **changes: object) -> ClientRequest:
    """A greedy request of three prompt tokens and at most three outputs, end-of-text ignored."""
    request = ClientRequest(
        name=name,
        tenant="default",
        model="m",
        prompt=(3, 4, 5),
        max_new_tokens=3,
        min_tokens=0,
        temperature=0.0,
        seed=None,
        stop_token_ids=(),
        eos_ids=(EOS,),
        ignore_eos=True,
        deadline_ns=60_000 * MS,
        submitted_ns=10 * MS,
    )
    return replace(request, **changes)  # type: ignore[arg-type]


def greedy(request: ClientRequest, count: int) -> list[int]:
    return greedy_tokens(request.prompt, count, VOCAB, MODEL)


def text(tokens: list[int] | tuple[int, ...]) -> str:
    return "".join(chr(33 + token) for token in tokens)


@dataclass
class History:
    """Tells an oracle what a right server and board would show; tests leave out, add or bend a line of it."""

    world: World = WORLD
    session: str = "s0"
    generation: int = 1
    now: int = 0
    oracle: Oracle = field(init=False)
    tickets: int = 0
    requests: dict[str, ClientRequest] = field(default_factory=dict)
    specs: dict[int, JobSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.oracle = Oracle(self.world)
        self.oracle.process_started(0)
        self.state("ready")

    @property
    def found(self) -> list[str]:
        """Invariants of what was found, in order."""
        return [violation.invariant for violation in self.oracle.violations]

    def say(self) -> str:
        return "\n".join(f"{v.invariant} {v.sentence}" for v in self.oracle.violations)

    def at(self, ms: int) -> "History":
        self.now = ms * MS
        return self

    def state(self, state: str) -> None:
        self.oracle.session_state(self.session, self.generation, state, self.now)

    def submit(self, request: ClientRequest) -> ClientRequest:
        self.requests[request.name] = request
        self.oracle.submitted(request)
        return request

    # --- the board --------------------------------------------------------------------------------------

    def fact(self, kind: FactKind, ticket: int = 0, **given: object) -> None:
        fields: dict[str, object] = {"session": self.session, "generation": self.generation, "chips": CHIPS, **given}
        self.oracle.fact(DeviceFact(self.now, kind, ticket, **fields))  # type: ignore[arg-type]

    def put(self, *rows: Row, generation: int = 0, number: int = 0) -> int:
        """SUBMITTED: a job of these rows. Returns its ticket."""
        self.tickets += 1
        ticket = self.tickets
        task = Task.PREFILL if rows[0].first_position == 0 else Task.DECODE
        spec = JobSpec(
            number or ticket, generation or self.generation, self.session, "g", task, Bank.AUTO, 10**12, tuple(rows)
        )
        self.specs[ticket] = spec
        self.fact(FactKind.SUBMITTED, ticket, spec=spec, generation=spec.generation)
        return ticket

    def row(self, name: str, lane: int, first: int = 0, count: int = 0) -> Row:
        """count 0: the whole prompt at position 0, else one token."""
        count = count or (len(self.requests[name].prompt) if first == 0 else 1)
        wants = LogitsWanted.LAST if first + count >= len(self.requests[name].prompt) else LogitsWanted.NONE
        return Row(name, lane, (lane,), first, count, wants)

    def right_rows(self, ticket: int) -> tuple[RowFact, ...]:
        """What a sound DMA reads for this job."""
        rows = []
        for row in self.specs[ticket].rows:
            request = self.requests[row.request]
            first, count = row.first_position, row.token_count
            ids = [*request.prompt, *greedy(request, first + count)][first : first + count]
            rows.append(RowFact(row.lane, first, tuple(ids), tuple(range(first, first + count)), first + count))
        return tuple(rows)

    def read(self, ticket: int, rows: tuple[RowFact, ...] | None = None) -> None:
        self.fact(FactKind.INPUTS_READ, ticket, rows=self.right_rows(ticket) if rows is None else rows)

    def retire(self, ticket: int, code: int = 0, detail: str = "done") -> None:
        self.fact(FactKind.RETIRED, ticket, code=code, detail=detail, generation=self.specs[ticket].generation)

    def deliver(self, ticket: int) -> None:
        self.fact(FactKind.DELIVERED, ticket, generation=self.specs[ticket].generation)

    def run(self, *rows: Row, generation: int = 0) -> int:
        """A job from its submit to its delivery, all sound."""
        ticket = self.put(*rows, generation=generation)
        self.read(ticket)
        self.retire(ticket)
        self.deliver(ticket)
        return ticket

    # --- the streams ------------------------------------------------------------------------------------

    def tell(self, name: str, *tokens: int, words: str | None = None) -> None:
        self.oracle.received(name, tokens, text(tokens) if words is None else words, self.now)

    def end(self, name: str, reason: str, count: int = 0, detail: str = "") -> None:
        self.oracle.ended(name, reason, detail, count, self.now)

    def whole(self, name: str, lane: int) -> None:
        """A request from its first job to its end by length, a millisecond a step."""
        request = self.requests[name]
        right = greedy(request, request.max_new_tokens)
        for index, token in enumerate(right):
            self.now += MS
            first = 0 if index == 0 else len(request.prompt) + index - 1
            self.run(self.row(name, lane, first))
            self.tell(name, token)
        self.end(name, "length", len(right))

"""One request as the oracle follows it: what its tokens and its text must be, and how far the board is with it.

Owns: `Answer`, the expected output made lazily (the board may read a token before the client hears it), and the text
that is owed. Must not know: other requests, lanes of others, time. Life: made at the submit, forgotten when it has
ended and no job on the board names it any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from calserve.simulate.oracle.tokens import TokenFormula, carry, carry_all, start_of, uniform_of
from calserve.simulate.oracle.world import ClientRequest, World

_NOBODY: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class Answer:
    """What is known of one request.

    output: expected tokens so far. hash: after prompt and `output`. received: tokens the client has, or will get in one
    piece. owed: text the client has still to get. told: text sent so far, where it is read in one piece. stop: how the
    received tokens end ("", "token", "string"). starts_over: how often it was said that it does. is_bad: a violation
    was reported, its consequences are not.

    On the board: generation, session and lane of its last job (generation 0: never there), committed tokens,
    computed: outputs whose job the host was told came back sound; computed_before: that of the run before, whose last
    outputs may still be on their way. job: ticket in flight, 0 for none. run: how often it began. holds: jobs on the
    board that name it.
    """

    request: ClientRequest
    serial: int
    barred: frozenset[int]
    ends: frozenset[int]
    hash: int
    output: list[int] = field(default_factory=list)
    received: int = 0
    owed: str = ""
    told: str = ""
    matched: str = ""
    stop: str = ""
    starts_over: int = 0
    is_bad: bool = False
    cancelled_ns: int | None = None
    is_waiting: bool = True
    has_ended: bool = False
    generation: int = 0
    session: str = ""
    lane: int = -1
    committed: int = 0
    computed: int = 0
    computed_before: int = 0
    job: int = 0
    run: int = 0
    was_lost: bool = False  # its last job retired badly
    ready_at: int = 0  # decode jobs of its session when the host was told its last one
    paid: int = 0  # cost the board had for it, in units of one prompt token

    @property
    def name(self) -> str:
        return self.request.name

    @property
    def is_seen(self) -> bool:
        """Whether the client has something that it would get twice if the answer started over."""
        return self.received > 0 and not self.request.is_whole

    @property
    def sound_outputs(self) -> int:
        """How many the client may have: of this run, or of the one before until it is told that it starts over."""
        return max(self.computed, self.computed_before if self.starts_over < self.run - 1 else 0)

    def start_over(self) -> None:
        """What was sent of it counts no more. What it must be stays as it is: the same request has the same answer."""
        self.starts_over += 1
        self.received = 0
        self.owed = self.told = self.matched = self.stop = ""


class Answers:
    """Makes answers and their next tokens."""

    def __init__(self, world: World) -> None:
        self._formula = TokenFormula(world.vocab)
        self._starts = {alias: start_of(model) for alias, model in world.models.items()}
        self._vocab = world.vocab
        self._text_of = world.text_of

    def make(self, request: ClientRequest, serial: int) -> Answer:
        barred = frozenset(request.eos_ids) | frozenset(request.stop_token_ids) if request.min_tokens else _NOBODY
        ends = frozenset(request.stop_token_ids)
        if not request.ignore_eos:
            ends |= frozenset(request.eos_ids)
        start = self._starts.get(request.model, 0)
        return Answer(request, serial, barred, ends, carry_all(start, request.prompt))

    def has_choice(self, answer: Answer) -> bool:
        """False when the request's own settings leave no token to choose next."""
        return self._next(answer) != -1

    def is_right(self, answer: Answer, index: int, token: int) -> bool:
        """Whether `token` is output `index`. Where the server drew the seed, the first account of it is right."""
        output = answer.output
        while len(output) <= index:
            expected = self._next(answer)
            if expected is None:
                if len(output) < index or not 0 <= token < self._vocab:
                    return False
                expected = token
            if expected < 0:
                return False
            self._append(answer, expected)
        return output[index] == token

    def expected(self, answer: Answer, index: int) -> int:
        """Output `index` for a sentence; -1 when it is not known."""
        return answer.output[index] if index < len(answer.output) else -1

    def _next(self, answer: Answer) -> int | None:
        """The next token; -1 when none can be, None when only the server knows."""
        request, index = answer.request, len(answer.output)
        barred = answer.barred if index < request.min_tokens else _NOBODY
        if request.temperature <= 0.0:
            best = self._formula.best(answer.hash, barred)
            return -1 if best is None else best
        if request.seed is None:
            return None
        u = uniform_of(request.seed, index)
        drawn = self._formula.drawn(answer.hash, request.temperature, u, barred)
        return -1 if drawn is None else drawn

    def _append(self, answer: Answer, token: int) -> None:
        position = len(answer.request.prompt) + len(answer.output)
        answer.hash = carry(answer.hash, token, position)
        answer.output.append(token)

    # --- text -------------------------------------------------------------------------------------------

    def take(self, answer: Answer, token: int) -> None:
        """The client has one more (right) token: what text it is owed by now, and whether the answer ends here."""
        index = answer.received
        answer.received = index + 1
        if token in answer.ends:
            answer.stop = "token"
        elif self._text_of is not None:
            text = self._text_of(token)
            answer.owed += text
            if answer.request.stop_strings and index >= answer.request.min_tokens:
                self._match(answer, text)

    def _match(self, answer: Answer, text: str) -> None:
        """The first stop string to be complete ends the answer; its text stays inside."""
        for at, character in enumerate(text):
            answer.matched += character
            stops = [stop for stop in answer.request.stop_strings if answer.matched.endswith(stop)]
            if stops:
                answer.stop = "string"
                cut = max(map(len, stops)) + len(text) - at - 1
                # None: some of the stop string has left already
                answer.owed = answer.owed[:-cut] if len(answer.owed) >= cut else "\0leaked"
                return
        longest = max(map(len, answer.request.stop_strings))
        answer.matched = answer.matched[-longest:]

    def owes(self, answer: Answer, text: str) -> bool:
        """Take `text` from what is owed; False when it is not the next of it."""
        if answer.request.is_whole:
            answer.told += text
        if self._text_of is None:
            return True
        if not answer.owed.startswith(text):
            return False
        answer.owed = answer.owed[len(text) :]
        return True

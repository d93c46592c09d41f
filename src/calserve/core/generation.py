"""What a session's generation is: its package, its number, its state, and the lifecycle order that is out.

Owns: the identity of the generation that is up or on its way, the numbers of those before it, and the orders that end
it. Must not know: why it goes from one state to the next; that is the session's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from calserve.core.commands import Release, Reset, ResetScope
from calserve.core.config import SchedulerConfig
from calserve.core.events import Load
from calserve.core.orders import Orders
from calserve.core.outbox import Outbox
from calserve.core.outcomes import Failure
from calserve.core.recovery import Recovery
from calserve.core.shape import Shape
from calserve.core.states import GENERATION_STEPS, GenerationEvent, GenerationState, step

# generations of the past whose late completions still name their session
PAST_KEPT = 8


class Generation:
    """Invariants: `state` moves only by its table; `generation` only rises."""

    def __init__(self, name: str, config: SchedulerConfig, outbox: Outbox, numbers: Callable[[], int]) -> None:
        self.name = name
        self.config = config
        self._out = outbox
        self._numbers = numbers
        self.orders = Orders(config, outbox)
        self.state = GenerationState.UNLOADED
        self.model = ""
        self.package = ""
        self.generation = 0
        self.failure: Failure | None = None  # why it is Failed, or what it recovers from
        self.is_on_board = False  # something is configured that must be released
        self.recovery = Recovery()
        self._past: deque[int] = deque(maxlen=PAST_KEPT)
        self._shape: Shape | None = None
        self._told: frozenset[str] = frozenset()  # by a configuration that failed

    @property
    def proven(self) -> frozenset[str]:
        """Capabilities proven when it was last configured, or tried to be."""
        return self._shape.proven if self._shape is not None else self._told

    @property
    def pending(self) -> str:
        """The kind of lifecycle order that has not been answered."""
        return self.orders.pending

    def had(self, generation: int) -> bool:
        """Whether it is one of the last generations of this session, the one that is up included."""
        return generation == self.generation or generation in self._past

    def _move(self, event: GenerationEvent) -> None:
        self.state = step(GENERATION_STEPS, self.state, event)

    def _begin_generation(self) -> None:
        if self.generation:
            self._past.append(self.generation)
        self.generation = self._numbers()

    def _take_package(self, event: Load) -> None:
        self.model, self.package = event.model, event.package
        self.failure = None

    def is_answer(self, generation: int, kind: str) -> bool:
        return self.orders.is_answer(kind, is_mine=generation == self.generation)

    def rebuild(self, now_ns: int) -> None:
        """Every job came back and the device is well: the generation is released and made anew."""
        self.recovery.rebuild_granted(now_ns)
        self._out.count("rebuilds")
        self.orders.give(Release(self.name, self.generation, self.failure))

    def reset(self, scope: ResetScope, cause: Failure) -> None:
        self.recovery.reset_granted(scope)
        self._out.count("resets")
        self.orders.give(Reset(self.name, self.generation, scope, cause))

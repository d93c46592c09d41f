"""How many may have been waiting lately, and whether a refusal told the truth.

Owns: an upper bound of every line (requests and prompt tokens that were submitted, have not ended and are not seen on
the board), its highest value of late, and the check of each kind of refusal. Must not know: the board, tokens. A
request the server has admitted but not yet run counts as waiting here, so a refusal is called false only when it
cannot have been true.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from calserve.simulate.oracle.answers import Answer
from calserve.simulate.oracle.world import World

_NOT_SERVING = ("model_draining", "model_recovering", "model_failed")


class Peak:
    """The highest value within a stretch that ends now. Amortised constant time."""

    __slots__ = ("_falling", "_length_ns", "value")

    def __init__(self, length_ns: int) -> None:
        self._length_ns = length_ns
        self._falling: deque[tuple[int, int]] = deque()  # (until when it held, value), values falling
        self.value = 0

    def set(self, value: int, at_ns: int) -> None:
        """`value` holds from now on; the last one held until now."""
        while self._falling and self._falling[-1][1] <= self.value:
            self._falling.pop()
        self._falling.append((at_ns, self.value))
        self.value = value
        while self._falling[0][0] < at_ns - self._length_ns:
            self._falling.popleft()

    def highest(self, at_ns: int) -> int:
        while self._falling and self._falling[0][0] < at_ns - self._length_ns:
            self._falling.popleft()
        return max(self.value, self._falling[0][1] if self._falling else 0)


@dataclass(slots=True)
class _Crowd:
    requests: Peak
    tokens: Peak


@dataclass(slots=True)
class Lines:
    """Lines by model and by (model, tenant). Told of every change by the oracle."""

    world: World
    _by_model: dict[str, _Crowd] = field(default_factory=dict)
    _by_tenant: dict[tuple[str, str], _Crowd] = field(default_factory=dict)

    def _crowds(self, answer: Answer) -> tuple[_Crowd, _Crowd]:
        model, tenant = answer.request.model, answer.request.tenant
        everybody = self._by_model.get(model)
        if everybody is None:
            everybody = self._by_model[model] = self._crowd()
        own = self._by_tenant.get((model, tenant))
        if own is None:
            own = self._by_tenant[model, tenant] = self._crowd()
        return everybody, own

    def _crowd(self) -> _Crowd:
        length_ns = 2 * self.world.told_slack_ns
        return _Crowd(Peak(length_ns), Peak(length_ns))

    def change(self, answer: Answer, by: int, at_ns: int) -> None:
        """`answer` joins (1) or leaves (-1) its line."""
        tokens = by * len(answer.request.prompt)
        for crowd in self._crowds(answer):
            crowd.requests.set(crowd.requests.value + by, at_ns)
            crowd.tokens.set(crowd.tokens.value + tokens, at_ns)

    def why_false(self, answer: Answer, kind: str, at_ns: int) -> str:
        """Why a refusal of this kind cannot be true; "" when it can. Those that tell of a model's state are judged
        elsewhere."""
        world, request = self.world, answer.request
        prompt, total = len(request.prompt), len(request.prompt) + request.max_new_tokens
        is_recent = at_ns - request.submitted_ns <= world.told_slack_ns
        everybody, own = self._crowds(answer)
        tenant = request.tenant
        match kind:
            case "invalid":
                return "" if prompt < 1 or request.max_new_tokens < 1 else "prompt and length are both at least 1"
            case "too_long":
                return "" if total > world.context else f"{total} tokens are within the context of {world.context}"
            case "too_large_for_kv":
                room = world.kv_tokens or world.lanes_per_session * world.context
                return "" if total > room else f"{total} tokens fit the {room} of an empty session"
            case "queue_full" if is_recent:
                return _short_of(everybody.requests, world.max_waiting_requests, "waiting requests", at_ns)
            case "queue_tokens_full" if is_recent:
                return _short_of(everybody.tokens, world.max_waiting_prompt_tokens, "waiting prompt tokens", at_ns)
            case "tenant_queue_full" if is_recent:
                requests = world.tenant_max_waiting_requests.get(tenant, 0)
                tokens = world.tenant_max_waiting_prompt_tokens.get(tenant, 0)
                by_requests = _short_of(own.requests, requests, f"waiting requests of {tenant}", at_ns)
                by_tokens = _short_of(own.tokens, tokens, f"waiting prompt tokens of {tenant}", at_ns)
                return by_requests and by_tokens
            case "queue_full" | "queue_tokens_full" | "tenant_queue_full":
                return f"it was accepted at {request.submitted_ns} and waited"
            case "unknown_model":
                return "" if request.model not in world.models else "the model is served"
            case _ if kind in _NOT_SERVING:
                return ""
        return f"there is no refusal of kind {kind!r}"


def _short_of(peak: Peak, limit: int, what: str, at_ns: int) -> str:
    """Why a line of this limit cannot have been full. The one that was refused counts in `peak`."""
    if limit == 0:
        return f"there is no limit on {what}"
    highest = peak.highest(at_ns)
    return "" if highest > limit else f"at most {highest} of {limit} {what}, the refused one included"

"""From a checked request to what the executor takes.

Owns the grouping: `n` and lists of prompts are several core requests read as one stream, members in OpenAI's choice
order (all of the first prompt, then the second). Must not know HTTP or how text is tokenized. An `Ask` lives until
its submissions are made; these move to the engine thread.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

from calserve.core.events import Submit
from calserve.core.outcomes import Refusal
from calserve.executor.messages import Submission
from calserve.executor.sequence import GenerationParams, Sequence
from calserve.sampling.params import SamplingParams
from calserve.service.catalogue import PackageFacts, ServedModel

DEFAULT_TENANT = "default"
# Choices one call may ask for, over all its prompts: OpenAI's limit on `n`.
MAX_CHOICES = 128
_SEED_SPAN = 1 << 63


@dataclass(frozen=True, slots=True)
class Ask:
    """A request whose parameters were checked. Exactly one of `prompts` and `messages` is set.

    prompts: texts or token ids. max_new_tokens: None generates to the end of the context. label: the prefix of ids
    the client sees. arrived_ns: on the engine's clock. offset of the seed: choice i of a prompt uses seed + i.
    """

    label: str
    model: str
    sampling: SamplingParams
    arrived_ns: int
    is_streaming: bool
    prompts: tuple[str | tuple[int, ...], ...] = ()
    messages: tuple[Mapping[str, str], ...] = ()
    n: int = 1
    max_new_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stops: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """Not accepted. `message` and `field` only where the service itself found the fault in the request."""

    refusal: Refusal
    message: str = ""
    field: str | None = None


def new_id(label: str) -> str:
    """An id nobody can guess: `DELETE /internal/requests/{id}` acts on it."""
    return f"{label}-{secrets.token_hex(16)}"


def member_ids(stream: str, count: int) -> tuple[str, ...]:
    """A lone member carries the stream's own id, so that logs and records show what the client saw."""
    return (stream,) if count == 1 else tuple(f"{stream}-{i}" for i in range(count))


def submissions(
    ask: Ask, model: ServedModel[PackageFacts], members: Many[str], prompts: Many[Many[int]], context: int | None
) -> list[Submission]:
    """One submission per member. Time grows with members, prompts, stop strings and penalties: not for a loop.

    Args:
        prompts: token ids, one per prompt; none is empty.
        context: tokens a session of the model takes, or None while no session is up.
    """
    made = []
    for index, member in enumerate(members):
        prompt, choice = prompts[index // ask.n], index % ask.n
        room = (context or model.package.context) - len(prompt)
        # A prompt that leaves no room is refused by `core`, with the limit; the number here is then never used.
        max_new = ask.max_new_tokens or max(room, 1)
        # Before a session is up its context is not known: "to the end" is then left to `core`.
        is_resolved = ask.max_new_tokens is not None or (context is not None and room > 0)
        event = Submit(
            request=member,
            tenant=DEFAULT_TENANT,
            model=ask.model,
            prompt_tokens=len(prompt),
            max_new_tokens=max_new if is_resolved else None,
            arrived_ns=ask.arrived_ns,
            is_whole=not ask.is_streaming,
        )
        params = GenerationParams(
            sampling=_seeded(ask.sampling, choice),
            max_new_tokens=max_new,
            vocab_size=model.package.vocab_size,
            min_tokens=ask.min_tokens,
            ignore_eos=ask.ignore_eos,
            eos_ids=tuple(model.package.eos_token_ids),
            stop_token_ids=ask.stop_token_ids,
            stops=ask.stops,
        )
        made.append(Submission(event, Sequence(member, prompt, params, model.tokenizer)))
    return made


def _seeded(sampling: SamplingParams, choice: int) -> SamplingParams:
    """Every sampled member has its own seed; a request's own seed makes all of its choices repeatable."""
    if sampling.is_greedy:
        return sampling
    if sampling.seed is None:
        return replace(sampling, seed=secrets.randbits(63))
    if choice == 0:
        return sampling
    # Stays within the int64 that parse_sampling admits.
    return replace(sampling, seed=(sampling.seed + choice + _SEED_SPAN) % (2 * _SEED_SPAN) - _SEED_SPAN)

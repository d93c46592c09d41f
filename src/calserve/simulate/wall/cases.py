"""Prompts, and what the right answers to them are.

Owns two sources: the simulated board's oracle, which recomputes any answer from the prompt alone, and a set of
answers that a real model gave when each prompt was asked by itself. Must not know HTTP or clients.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from calserve.runtime.sim.oracle import greedy_tokens
from calserve.runtime.sim.serving import CONTROL_TOKENS, EOS_TOKEN_IDS, VOCAB

# Tokens of prompts and outputs; means of 40 and 14, so that lanes turn over several times a second.
PROMPT_MAX, OUTPUT_MAX = 160, 32


@dataclass(frozen=True, slots=True)
class Case:
    """A greedy request. prompt: token ids. max_tokens: asked for. is_long: to that end, whatever the model says."""

    prompt: tuple[int, ...]
    max_tokens: int
    is_long: bool = False


@dataclass(frozen=True, slots=True)
class Expected:
    """The right answer. tokens: of the output, the end token included where one was given. is_whole: False when only
    the beginning is known, because the deadline came before the end."""

    text: str
    finish: str
    tokens: int
    is_whole: bool = True


class Cases(Protocol):
    """Where prompts come from. `goldens` are asked at the start and again later, always with the same answer."""

    goldens: tuple[Case, ...]

    def draw(self, chance: random.Random, *, is_long: bool) -> Case:
        """A case; `is_long` one that runs to the end of the context."""

    def expect(self, case: Case) -> Expected:
        """The right answer. Raises KeyError for a case that is not one of these."""


class SimCases:
    """Any prompt: the oracle knows the answer. A token is the byte of its number; control tokens have no text."""

    def __init__(self, model: str, context: int, vocab: int = VOCAB, eos_ids: Sequence[int] = EOS_TOKEN_IDS) -> None:
        self._model, self._context, self._vocab = model, context, vocab
        self._eos = tuple(eos_ids)
        self.goldens = tuple(Case(tuple((7 * i + 3 * g) % vocab for i in range(5 + 9 * g)), 24) for g in range(4))
        self._expect = lru_cache(maxsize=4096)(self._compute)

    def draw(self, chance: random.Random, *, is_long: bool) -> Case:
        length = 1 + min(int(chance.expovariate(1 / 40)), PROMPT_MAX - 1, self._context // 4)
        prompt = tuple(chance.randrange(self._vocab) for _ in range(length))
        room = self._context - length
        if is_long:
            return Case(prompt, room, is_long=True)
        return Case(prompt, 1 + min(int(chance.expovariate(1 / 14)), OUTPUT_MAX - 1, room - 1))

    def expect(self, case: Case) -> Expected:
        return self._expect(case)

    def _compute(self, case: Case) -> Expected:
        stops = () if case.is_long else self._eos
        tokens = greedy_tokens(case.prompt, case.max_tokens, self._vocab, self._model, stops)
        is_stopped = tokens[-1] in stops
        text = bytes(token for token in tokens if token not in CONTROL_TOKENS).decode("utf-8", "replace")
        return Expected(text, "stop" if is_stopped else "length", len(tokens))


class KnownCases:
    """A fixed set of prompts and the answers they got alone; `learn` is called for each of `unknown` first."""

    def __init__(self, seed: int, vocab: int, context: int, prompts: int = 24) -> None:
        chance = random.Random(f"known/{seed}")
        lengths = [1 + min(int(chance.expovariate(1 / 40)), PROMPT_MAX - 1) for _ in range(prompts)]
        outputs = [1 + min(int(chance.expovariate(1 / 14)), OUTPUT_MAX - 1) for _ in range(prompts)]
        made = [
            Case(tuple(chance.randrange(vocab) for _ in range(length)), output)
            for length, output in zip(lengths, outputs, strict=True)
        ]
        self._short = tuple(made)
        self._long = tuple(Case(case.prompt, context - len(case.prompt), is_long=True) for case in made[:2])
        self.goldens = self._short[:4]
        self._known: dict[Case, Expected] = {}

    @property
    def unknown(self) -> tuple[Case, ...]:
        return tuple(case for case in (*self._short, *self._long) if case not in self._known)

    def learn(self, case: Case, answer: Expected) -> None:
        self._known[case] = answer

    def draw(self, chance: random.Random, *, is_long: bool) -> Case:
        return chance.choice(self._long if is_long else self._short)

    def expect(self, case: Case) -> Expected:
        return self._known[case]

"""The work every side is given: the same prompts as token ids, the same number of new tokens."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from calserve.text.tokenizer import Tokenizer

_TEXT = (
    "A ship left the harbour before dawn with salt, copper and two passengers who did not speak to each other. "
    "The captain kept a small notebook in which he wrote the depth of the water, the colour of the sky and the "
    "names of birds. On the third day the wind turned, the sails were taken in, and everyone on board listened "
    "to the hull. An old map showed an island where none should be, and the cook said that his grandmother had "
    "lived there, that the soil was black, that the wells were sweet, and that nobody ever locked a door. "
)


@dataclass(frozen=True, slots=True)
class Work:
    """prompts: int ids, one list a stream. temperature 0 is greedy; only the served side samples."""

    prompts: tuple[tuple[int, ...], ...]
    new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0

    def as_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Run:
    """One side's turn. seconds: from the first prompt given to the last token taken."""

    tokens: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def make_prompts(tokenizer: Tokenizer, streams: int, length: int) -> tuple[tuple[int, ...], ...]:
    """`streams` different prompts of exactly `length` ids: the text above, entered at different places."""
    ids = tokenizer.encode(_TEXT * 4)
    return tuple(tuple(ids[7 * i : 7 * i + length]) for i in range(streams))

"""What a person may choose when packing, and what follows from it for the board.

Owns the defaults, the allowed values and every numeric hint. Must not import heavy libraries.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from calserve.package.fault import PackageError
from calserve.package.manifest import NAME_PATTERN

WEIGHTS = ("int8", "int4", "fp16", "given")
NUMERICS = ("fast", "exact")
REFERENCES = ("auto", "transformers")
SOURCE_CACHE = Path("models/sources")
MAX_LANES = 256  # rows of one paged graph; far above what a CPU gains from

# KV blocks of 32 tokens are what the CPU plug-in's paged attention is built for.
UNIT_TOKENS = 32
KV_DTYPE: Final = "float16"
AGREEMENT_TOKENS = 512  # positions compared; the built-in text has a little fewer for most vocabularies


@dataclass(frozen=True, slots=True)
class PackOptions:
    """profiles: lane counts worth choosing, rising; the last is the number of lanes. context: tokens of one sequence.

    weights: "given" leaves them as the source has them. reference: what the agreement is measured against: "auto" is
    transformers in float32 for a Hugging Face source, and the source's own graph for the others. alias: the name the
    model is served under; empty takes the source's. cache: where a hub's models are kept.
    """

    profiles: tuple[int, ...] = (1, 4, 8, 16)
    context: int = 2048
    weights: str = "int8"
    numerics: str = "fast"
    reference: str = "auto"
    alias: str = ""
    force: bool = False
    cache: Path = SOURCE_CACHE

    @property
    def lanes(self) -> int:
        return self.profiles[-1]


def check_options(options: PackOptions, trained_context: int) -> None:
    """Raise PackageError for values that cannot make a package."""
    profiles = options.profiles
    if not profiles or list(profiles) != sorted(set(profiles)) or profiles[0] < 1 or profiles[-1] > MAX_LANES:
        raise PackageError(
            "profiles",
            f"profiles must be rising lane counts between 1 and {MAX_LANES}, such as 1,4,8,16; got "
            f"{','.join(map(str, profiles)) or 'none'}.",
            MAX_LANES,
            profiles,
        )
    if options.weights not in WEIGHTS:
        raise PackageError("weights", f"weights must be one of {', '.join(WEIGHTS)}; got {options.weights}.")
    if options.numerics not in NUMERICS:
        raise PackageError("numerics", f"numerics must be one of {', '.join(NUMERICS)}; got {options.numerics}.")
    if options.reference not in REFERENCES:
        raise PackageError("reference", f"reference must be one of {', '.join(REFERENCES)}; got {options.reference}.")
    if options.alias and not re.fullmatch(NAME_PATTERN, options.alias):
        raise PackageError("alias", f"{options.alias!r} cannot be a model's name: letters, digits, and ._/:- inside.")
    if options.context < UNIT_TOKENS:
        raise PackageError(
            "context", f"the context must be at least {UNIT_TOKENS} tokens; got {options.context}.", UNIT_TOKENS
        )
    if options.context > trained_context:
        raise PackageError(
            "context_too_long",
            f"the model was trained for {trained_context} tokens; a context of {options.context} is too long.",
            trained_context,
            options.context,
        )


def board_settings(is_compressed: bool, numerics: str) -> dict[str, str]:
    """Every numeric hint the board compiles with, so that no default of a processor decides a token.

    exact: float32 arithmetic, no quantization of activations. fast: weights of eight bits or fewer with activations
    quantized in groups of 32 (groups of 64 cost a point of agreement, whole rows break the text); wider weights in
    bfloat16, which a processor without it runs in float32. KV is float16 in both: with uint8 the way a prompt is cut
    moves the logits.
    """
    bfloat = numerics == "fast" and not is_compressed
    return {
        "INFERENCE_PRECISION_HINT": "bf16" if bfloat else "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "32" if numerics == "fast" else "0",
        "KV_CACHE_PRECISION": "f16",
        "PERFORMANCE_HINT": "LATENCY",
    }

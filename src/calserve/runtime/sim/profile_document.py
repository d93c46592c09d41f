"""`docs/board-profile.md`: the format of board profiles, written from the schema itself.

Owns what people are told of each figure. Must not hold a bound of its own: a test holds that every key stands here.
`python -m calserve.runtime.sim.profile_document > docs/board-profile.md` writes it.
"""

from __future__ import annotations

from collections.abc import Iterable

from calserve.runtime.contract import CAPABILITIES
from calserve.runtime.sim import profile
from calserve.runtime.sim.profile import CONTEXT_MIN, FOLDER, PROFILES, SCHEMA

FIGURES: dict[str, dict[str, str]] = {
    "board": {
        "chips": "chips of the board",
        "cores_per_chip": "CalCores of a chip",
        "session_chips": "how many chips a session may span: ascending, each once, none beyond `chips`",
        "dram_bytes": "memory of a chip; weights, KV and workspace of a session must have room",
        "weight_bytes": "of the model",
        "kv_bytes_per_token": "of one sequence",
        "workspace_bytes": "a chip needs for itself",
        "profiles": "compiled batches: ascending from 1; beyond 1 they need `batch_lanes` at C0",
        "context": f"tokens of a sequence, {CONTEXT_MIN} at least",
        "vocab": "a power of two, at least 8; at most 256 with bfloat16 logits",
        "eos_token_ids": "below `vocab`",
        "logits_dtype": "`float32` or `bfloat16`",
        "logits_tile": "1 for plain rows, else the width of a tile",
        "inactive_lane_policy": "`valid_mask` or `position_minus_one`",
        "kv_block_tokens": "what a broken job leaves undefined at once",
        "max_in_flight": "1, or 2: there are two banks",
        "banks_overlap": "whether jobs of two banks run at the same time",
        "chips_overlap": "whether jobs of two chips do",
        "calbins_per_board": "configured graphs at once, at most one a chip",
        "kv_lanes": "sequences of KV where graphs take a row's lane as an input; left out, row i is lane i",
    },
    "timing": {
        "decode_ns": "a step's compute by batch: a time for each of `board.profiles` and no other",
        "prefill_base_ns": "of a prefill, whatever its length",
        "prefill_token_ns": "and for each of its tokens",
        "launch_ns": "from submit to the first transfer",
        "dma_setup_ns": "of a transfer",
        "dma_ns_per_kib": "and for each KiB",
        "d2d_token_ns": "between chips, for each token, in sessions of more than one",
        "configure_ns": "loading weights and graphs",
        "reset_ns": "any reset",
    },
    "telemetry": {
        "temperature_c": "left out: not known, which is not 0",
        "power_w": "likewise",
        "frequency_hz": "likewise",
    },
}


def page() -> str:
    """The whole page."""
    figures = "".join(
        f"| `{section}.{name}` | {told} |\n" for section, names in FIGURES.items() for name, told in names.items()
    )
    return f"""\
# Board profiles

One kind of simulated board: `calserve serve --board sim --board-profile NAME`, or a file. These ship, and are examples
(`{FOLDER.relative_to(FOLDER.parents[4])}/`): {_listed(PROFILES)}. A file is YAML or JSON
and begins with `schema: {SCHEMA}`, then `name` (small letters, digits, hyphens), `is_assumed`,
`versions`, and the sections below. Written from the schema (`make docs`).

Every figure says where it comes from, one of the two:

```yaml
chips: {{value: 2, source: "the data sheet, page 3"}}
context: {{value: 512, assumed: short enough to try things}}
```

Times are nanoseconds, sizes bytes. A board that could not be served on is refused when its file is read.

| figure | what it is |
| --- | --- |
{figures}
`capabilities` states every one of these, C0 proven here, C1 an interface without a proof, C2 possible, C3 with the
vendor's help, C4 not supported. C0 is for profiles with `is_assumed: true`, boards nobody has.
`calcore_affinity` is C3 or C4: no call names a CalCore for a job.

{"".join(f"- `{name}`{chr(10)}" for name in CAPABILITIES)}"""


def sections() -> dict[str, tuple[str, ...]]:
    """Every figure there is, by section."""
    of = {"board": profile._Board, "timing": profile._Timing, "telemetry": profile._Telemetry}
    return {name: section.__struct_fields__ for name, section in of.items()}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(page(), end="")

"""The boards of a run: from a plan's few choices to a profile, its packages and what a session is loaded with.

Owns: how a `BoardPlan` becomes a `SimProfile`. Must not know: faults, servers, time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from calserve.core.outcomes import Failure, FaultClass
from calserve.runtime.contract import BoardPackage, Evidence, LoadOptions
from calserve.runtime.sim import PROFILES, FaultPlan, FaultPoint, ProfileError, SimProfile, random_plan, sim_package
from calserve.runtime.sim.faults import Fault
from calserve.runtime.sim.profile import parse_profile
from calserve.runtime.sim.serving import served_sim_package
from calserve.simulate.alphabet import make_tokenizer, text_of
from calserve.simulate.bad_packages import bad_package
from calserve.simulate.plan import BoardPlan, FaultsPlan, ServerPlan
from calserve.text.tokenizer import Tokenizer

MODEL_NAME = "sim-model"

# Visits of a point in one job; a plan counts in jobs, so that every kind of fault has the same chance.
_PER_JOB = {FaultPoint.MAP_FAILS: 6, FaultPoint.SLICE_FAILS: 2, FaultPoint.CSR_FAILS: 2, FaultPoint.KV_APPLY_FAILS: 3}
# Points that are visited a few times in an hour: one visit in so many.
_RARE = {
    FaultPoint.CONFIGURE_FAILS: 5,
    FaultPoint.RESET_FAILS: 4,
    FaultPoint.ALLOCATE_FAILS: 12,
    FaultPoint.COUNTERS_WRONG: 8,
    FaultPoint.COMPLETION_SWAPPED: 60,
    # five sets put away in one generation, and a take of a sixth is refused
    FaultPoint.UNDO_LOST: 60,
}


def fault_plan(plan: FaultsPlan, seed: int) -> FaultPlan:
    """The faults of an era, as the device takes them."""
    if plan.listed:
        return FaultPlan(Fault(FaultPoint(f.point), f.at_visit, f.times, f.value) for f in plan.listed)
    points = [FaultPoint(name) for name in plan.points]
    gaps = {point: plan.mean_gap * visits for point, visits in _PER_JOB.items()}
    return random_plan(seed, points, 1.0, plan.mean_gap, plan.late_ns, gaps | _RARE)


def hold_back(plan: FaultPlan) -> Callable[[], None]:
    """Nothing fires, and no visit counts, until what this gives is called."""
    active, plan.active = plan.active, frozenset()

    def let_go() -> None:
        plan.active = active

    return let_go


@dataclass(frozen=True, slots=True)
class BoardParts:
    """packages: two of the same model, so that one can replace the other and every token stays the same.

    text_of: the text of a token; None where a character may take several.
    """

    profile: SimProfile
    packages: tuple[BoardPackage, BoardPackage]
    tokenizer: Tokenizer
    text_of: Callable[[int], str] | None

    @property
    def vocab(self) -> int:
        return self.packages[0].vocab_size

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self.packages[0].eos_token_ids

    def open_package(self, wanted: str) -> BoardPackage | Failure:
        for package in self.packages:
            if package.hash == wanted:
                return package
        bad = bad_package(self.packages[0], wanted)
        return bad or Failure("validate", 10, FaultClass.ARTIFACT, f"there is no package {wanted[:40]}")

    def options(self, server: ServerPlan, sessions: int) -> Mapping[str, LoadOptions]:
        chips = range(self.profile.chips)
        if sessions == 1:
            spans = self.profile.session_chips
            return {"s0": LoadOptions(tuple(chips)[: max(spans)], max_in_flight=server.max_in_flight)}
        return {f"s{chip}": LoadOptions((chip,), max_in_flight=server.max_in_flight) for chip in chips}


def profile_of(base: str, own: str = "") -> SimProfile:
    """The profile of that name: of the text `own`, or one that ships. Never a file: a plan has all it needs.

    Raises:
        ProfileError: there is none, or the text is none.
    """
    if own:
        profile = parse_profile(own, "the plan's own profile")
        if profile.name == base:
            return profile
    if base not in PROFILES:
        raise ProfileError(f"{base[:80]!r} is none of {', '.join(PROFILES)}, nor the profile that the plan carries.")
    return PROFILES[base]


def board_parts(plan: BoardPlan, own: str = "") -> BoardParts:
    """The profile of `plan` and its packages; own: see `RunPlan.profile`. Raises ProfileError for no such board."""
    base = profile_of(plan.base, own)
    cut = dict.fromkeys(plan.cut, Evidence.C3)
    if plan.is_served:
        return _served_parts(replace(base, capabilities=_with(base, cut, plan.assumes)))
    profile = replace(
        base,
        context=plan.context,
        profiles=plan.profiles,
        logits_dtype=plan.dtype,
        logits_tile=plan.tile,
        max_in_flight=1 if "concurrent_jobs" in plan.cut else base.max_in_flight,
        capabilities=_with(base, cut, plan.assumes),
        timing=replace(base.timing, decode_ns={n: base.timing.decode_ns[n] for n in plan.profiles}),
    )
    first = sim_package(profile, MODEL_NAME)
    fitting = tuple(g for g in first.goldens if len(g.prompt_ids) + len(g.output_ids) <= plan.context)
    first = replace(first, goldens=fitting)
    return BoardParts(profile, _builds(first), make_tokenizer(profile.vocab), text_of)


def _served_parts(profile: SimProfile) -> BoardParts:
    """What `calserve serve --board sim` would serve, to the hash; its text files are read once and not kept."""
    with tempfile.TemporaryDirectory(prefix="calserve-soak-") as root:
        package = served_sim_package(profile, MODEL_NAME, Path(root))
        tokenizer = Tokenizer.from_file(package.files["tokenizer"], eos_ids=package.eos_token_ids)
    package = replace(package, root=Path("sim", MODEL_NAME), files=MappingProxyType({}))
    return BoardParts(profile, _builds(package), tokenizer, None)


def _builds(package: BoardPackage) -> tuple[BoardPackage, BoardPackage]:
    """A package and another build of the same model: another hash, everything else the same."""
    return package, replace(package, hash=package.hash[::-1])


def _with(base: SimProfile, cut: Mapping[str, Evidence], given: tuple[str, ...]) -> Mapping[str, Evidence]:
    return MappingProxyType({**base.capabilities, **cut, **dict.fromkeys(given, Evidence.C0)})

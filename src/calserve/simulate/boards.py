"""The boards of a run: from a plan's few choices to a profile, its packages and what a session is loaded with.

Owns: how a `BoardPlan` becomes a `SimProfile`. Must not know: faults, servers, time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from calserve.core.outcomes import Failure, FaultClass
from calserve.runtime.contract import BoardPackage, Evidence, LoadOptions
from calserve.runtime.sim import PROFILES, FaultPlan, FaultPoint, SimProfile, random_plan, sim_package
from calserve.runtime.sim.faults import Fault
from calserve.simulate.plan import BoardPlan, FaultsPlan, ServerPlan

MODEL_NAME = "sim-model"
BAD_PACKAGE = "no such package"

# Visits of a point in one job; a plan counts in jobs, so that every kind of fault has the same chance.
_PER_JOB = {FaultPoint.MAP_FAILS: 6, FaultPoint.SLICE_FAILS: 2, FaultPoint.CSR_FAILS: 2, FaultPoint.KV_APPLY_FAILS: 3}
# Points that are visited a few times in an hour: one visit in so many.
_RARE = {
    FaultPoint.CONFIGURE_FAILS: 5,
    FaultPoint.RESET_FAILS: 4,
    FaultPoint.ALLOCATE_FAILS: 12,
    FaultPoint.COUNTERS_WRONG: 8,
    FaultPoint.COMPLETION_SWAPPED: 60,
}


def fault_plan(plan: FaultsPlan, seed: int) -> FaultPlan:
    """The faults of an era, as the device takes them."""
    if plan.listed:
        return FaultPlan(Fault(FaultPoint(f.point), f.at_visit, f.times, f.value) for f in plan.listed)
    points = [FaultPoint(name) for name in plan.points]
    gaps = {point: plan.mean_gap * visits for point, visits in _PER_JOB.items()}
    return random_plan(seed, points, 1.0, plan.mean_gap, plan.late_ns, gaps | _RARE)


@dataclass(frozen=True, slots=True)
class BoardParts:
    """packages: two of the same model, so that one can replace the other and every token stays the same."""

    profile: SimProfile
    packages: tuple[BoardPackage, BoardPackage]

    def open_package(self, wanted: str) -> BoardPackage | Failure:
        for package in self.packages:
            if package.hash == wanted:
                return package
        return Failure("validate", 10, FaultClass.ARTIFACT, f"there is no package {wanted[:40]}")

    def options(self, server: ServerPlan, sessions: int) -> Mapping[str, LoadOptions]:
        chips = range(self.profile.chips)
        if sessions == 1:
            return {"s0": LoadOptions(tuple(chips), max_in_flight=server.max_in_flight)}
        return {f"s{chip}": LoadOptions((chip,), max_in_flight=server.max_in_flight) for chip in chips}


def board_parts(plan: BoardPlan) -> BoardParts:
    """The profile of `plan` and its packages."""
    base = PROFILES[plan.base]
    cut = dict.fromkeys(plan.cut, Evidence.C3)
    profile = replace(
        base,
        context=plan.context,
        profiles=plan.profiles,
        logits_dtype=plan.dtype,
        logits_tile=plan.tile,
        max_in_flight=1 if "concurrent_jobs" in plan.cut else base.max_in_flight,
        capabilities=MappingProxyType({**base.capabilities, **cut}),
        timing=replace(base.timing, decode_ns={n: base.timing.decode_ns[n] for n in plan.profiles}),
    )
    first = sim_package(profile, MODEL_NAME)
    # Another build of the same model: another hash, the same tokens.
    second = replace(first, hash=first.hash[::-1])
    return BoardParts(profile, (first, second))

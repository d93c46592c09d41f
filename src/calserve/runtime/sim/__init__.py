"""A simulated CalRT 0.7.6 board with lane KV: what the hardware is needed for and we do not have.

Owns: the simulated device (DRAM, DMA, ping/pong banks, one current calbin, trace), its clock, its faults, its
toy model and the oracle that recomputes that model's tokens. Must not know: requests, text, scheduling. Every
figure of a profile says where it comes from; nothing proven here is ever reported as the hardware's.
"""

from calserve.runtime.sim.board import SimBoard
from calserve.runtime.sim.clock import VirtualClock, WallClock
from calserve.runtime.sim.device import SimDevice
from calserve.runtime.sim.faults import Fault, FaultPlan, FaultPlanError, FaultPoint, load_fault_plan, random_plan
from calserve.runtime.sim.package import sim_package
from calserve.runtime.sim.profile import PROFILES, ProfileError, SimProfile, load_profile

__all__ = [
    "PROFILES",
    "Fault",
    "FaultPlan",
    "FaultPlanError",
    "FaultPoint",
    "ProfileError",
    "SimBoard",
    "SimDevice",
    "SimProfile",
    "VirtualClock",
    "WallClock",
    "load_fault_plan",
    "load_profile",
    "random_plan",
    "sim_package",
]

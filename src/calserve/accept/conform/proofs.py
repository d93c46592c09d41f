"""The list of proofs, in the order they run, and the capability each decides.

Owns: ids. Must not know: what a proof does. An id is a word in files and documents, and never changes its meaning.
"""

from __future__ import annotations

from calserve.accept.conform import chips, configures, jobs, kv, lanes, prompts, resets
from calserve.accept.conform.proof import Proof
from calserve.runtime.contract import CAPABILITIES

PROOFS = (
    Proof("jobs", "", "Completions name their job; counters close", jobs.prove_jobs),
    Proof("buffers", "", "Host memory stays where it is, and is scrubbed", jobs.prove_buffers),
    Proof("configure", "", "Wrong configures are refused, and harm nothing", configures.prove_configure),
    Proof("goldens", "", "The package's goldens, token by token", prompts.prove_goldens),
    Proof("prompt_lengths", "", "Prefill in one job equals prefill and decode, at every length", prompts.prove_lengths),
    Proof("context_limit", "", "The last position is used, the next one refused", prompts.prove_limit),
    Proof("alternating", "", "Two sequences in turn equal each alone", lanes.prove_alternating),
    Proof("kv_reuse", "", "A released lane is as new", lanes.prove_reuse),
    Proof("refused_submit", "", "A failed submit leaves KV unchanged", kv.prove_refused_submit),
    Proof("unload", "", "Unload is refused while a job is out, and complete after", jobs.prove_unload),
    Proof("observation", "", "Trace and telemetry", jobs.prove_observation),
    Proof("reset_scopes", "", "What each reset destroys", resets.prove_scopes),
    Proof("siblings", "", "A session is not changed by what happens on the other chip", chips.prove_siblings),
    Proof("concurrent_jobs", "concurrent_jobs", "Two jobs in flight", jobs.prove_two_jobs),
    Proof("batch_lanes", "batch_lanes", "Lanes 1..B in every position with holes equal alone", lanes.prove_lanes),
    Proof("inactive_lanes", "batch_lanes", "Inactive lanes write no KV", lanes.prove_inactive),
    Proof("incremental_prefill", "incremental_prefill", "Prefill in pieces equals one job", prompts.prove_incremental),
    Proof("mixed_batch", "mixed_batch", "Prefills beside decodes equal alone", lanes.prove_mixed),
    Proof("kv_share", "kv_share", "Two lanes over one unit", kv.prove_share),
    Proof("kv_copy", "kv_copy", "KV copied to another lane", kv.no_call("kv_copy")),
    Proof("kv_trim", "kv_trim", "A lane cut back goes on from there", kv.prove_trim),
    Proof("kv_shift", "kv_shift", "KV moved to other positions", kv.no_call("kv_shift")),
    Proof("kv_state", "kv_state", "KV read out and written back", kv.no_call("kv_state")),
    Proof("concurrent_chips", "concurrent_chips", "Two chips at once, with their overlap", chips.prove_chips),
    Proof("lane_fault_isolation", "lane_fault_isolation", "One row's fault", kv.no_call("lane_fault_isolation")),
    Proof("chip_reset", "chip_reset", "Reset of a chip", resets.prove_chip_reset),
    Proof("session_reset", "session_reset", "Reset of a session", resets.prove_session_reset),
    Proof("job_cancel", "job_cancel", "A job cancelled on the device", jobs.prove_cancel),
    Proof("multi_package", "multi_package", "Two packages on the same chips", configures.prove_packages),
    Proof("resident_profiles", "resident_profiles", "Profiles on one configuration", lanes.prove_profiles),
    Proof("calcore_affinity", "calcore_affinity", "A job on one CalCore", kv.no_call("calcore_affinity")),
)

BY_ID = {proof.id: proof for proof in PROOFS}
OF = {name: tuple(proof.id for proof in PROOFS if proof.capability == name) for name in CAPABILITIES}

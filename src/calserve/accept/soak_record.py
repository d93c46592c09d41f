"""What a soak record proves of two jobs in flight, and whether it does here.

Owns: the part of `calserve-soak-record/v1` that proves something (`calserve soak` writes it). Must not know: how a soak
is run, nor replay it: that takes `calserve soak --replay`, and minutes. What a record says of itself is held against
what else it says, and against the digest of its own content, so that one changed by hand shows. That is no signature:
who makes a record up and its digest with it is found out by a replay alone.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from calserve import strict_yaml
from calserve.accept.evidence import (
    JOBS_PROVEN,
    SOAK_CHECK,
    Check,
    EvidenceError,
    MaybeSha256,
    Sha256,
    Word,
    doubt_about_commit,
    other_figures,
    read_tree,
)
from calserve.runtime.contract import BoardFacts

SOAK_SCHEMA = "calserve-soak-record/v1"
# Seed 003, section 13.3: two in flight become the default only after a clean soak of this length.
SOAK_HOURS = 24
# Issue 3: 200,000 requests in 24 virtual hours. An era may have half of its share, and a job has at most 64 rows.
REQUESTS_A_DAY = 200_000
ERA_SHARE = 0.5
ROWS_MAX = 64
_HOUR_NS = 3_600_000_000_000
_DIGEST = "content_sha256"


class SoakProof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a clean soak says it ran on. profile: of the simulated board, "" for another. figures_sha256: as
    `BoardFacts` has it. commit: of the source, with a + where files differed from it. content_doubt: what in the record
    contradicts the rest of it, "" where nothing does."""

    commit: Word
    profile: str
    package_hash: Sha256
    versions: dict[str, str]
    hours: Annotated[float, msgspec.Meta(gt=0)]
    max_in_flight: Annotated[int, msgspec.Meta(ge=1)]
    verdict: Word
    figures_sha256: MaybeSha256 = ""
    content_doubt: str = ""


class _Era(msgspec.Struct, frozen=True):
    safety_ns: Annotated[int, msgspec.Meta(ge=0)]
    liveness_ns: Annotated[int, msgspec.Meta(ge=0)]


class _Mark(msgspec.Struct, frozen=True):
    """Of one era: how long it was and what it had in it."""

    virtual_ns: int
    requests: int
    jobs: int
    events: int


class _Plan(msgspec.Struct, frozen=True):
    eras: tuple[_Era, ...]


class _Content(msgspec.Struct, frozen=True):
    """What a record says it was made of."""

    plan: _Plan
    hashes: tuple[Sha256, ...] = ()
    marks: tuple[_Mark, ...] = ()


def load_soak(path: Path) -> SoakProof:
    """What a soak record proves: `schema`, `verdict`, `hours`, `made.commit`, and the mapping `proof`.

    `proof` holds exactly profile, package_hash, versions, figures_sha256 and max_in_flight. Whether it is clean, long
    enough and as it was written is `check_soak`'s to say.

    Raises:
        EvidenceError: one sentence.
    """
    tree = read_tree(path, "soak record", (SOAK_SCHEMA,))
    made, proof = tree.get("made"), tree.get("proof")
    if not isinstance(proof, dict) or not proof:
        raise EvidenceError(f"{path}: the record has no proof, so it proves nothing.")
    if taken := sorted({"commit", "hours", "verdict", "content_doubt"} & set(proof)):
        raise EvidenceError(f"{path}: proof.{taken[0]} is not one of its keys.")
    commit = made.get("commit") if isinstance(made, dict) else None
    flat = {**proof, "commit": commit, "hours": tree.get("hours"), "verdict": tree.get("verdict")}
    try:
        soak = strict_yaml.convert(flat, SoakProof)
    except strict_yaml.Wrong as error:
        raise EvidenceError(f"{path}: {error}") from None
    if not math.isfinite(soak.hours):
        raise EvidenceError(f"{path}: hours is {soak.hours}.")
    return msgspec.structs.replace(soak, content_doubt=_content_doubt(tree, soak.hours))


def content_digest(tree: Mapping[str, Any]) -> str:
    """SHA-256 of a record's JSON without its own digest: keys sorted, no spaces, ASCII."""
    rest = {name: value for name, value in tree.items() if name != _DIGEST}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _content_doubt(tree: Mapping[str, Any], hours: float) -> str:
    """What a record contradicts itself in, as a clause; "" in nothing."""
    try:
        content = strict_yaml.convert(tree, _Content)
    except strict_yaml.Wrong as error:
        return f"it does not say what it was made of ({str(error).rstrip('.')})"
    eras, planned = len(content.plan.eras), sum(era.safety_ns + era.liveness_ns for era in content.plan.eras)
    if not math.isclose(hours, planned / _HOUR_NS, rel_tol=1e-6):
        return f"it says {hours:g} h, and the eras of its plan are {planned / _HOUR_NS:g} h"
    if not eras == len(content.hashes) == len(content.marks):
        return f"it has {len(content.hashes)} hashes and the counts of {len(content.marks)} eras for {eras} in its plan"
    if len(set(content.hashes)) != eras:
        return "two of its eras have one hash"
    for at, (era, mark) in enumerate(zip(content.plan.eras, content.marks, strict=True)):
        length = era.safety_ns + era.liveness_ns
        wanted = int(ERA_SHARE * REQUESTS_A_DAY * length / _HOUR_NS / 24)
        if mark.virtual_ns < length:
            return f"era {at} took {mark.virtual_ns} ns, less than the {length} ns of its plan"
        if mark.requests < wanted or mark.jobs * ROWS_MAX < mark.requests or mark.events < mark.jobs:
            return f"era {at} had {mark.requests} requests in {mark.jobs} jobs, not {wanted} requests at least"
    told = tree.get(_DIGEST)
    if not told:
        return "it has no digest of its content, as records of this version have"
    return "" if told == content_digest(tree) else "it was changed after it was written"


def check_soak(soak: SoakProof, facts: BoardFacts, package_hash: str) -> Check:
    """Whether the soak counts here: clean, long enough, two in flight, on this very board and package, and a record
    that agrees with itself. Nothing is signed: see the module's docstring."""
    doubts = (
        (bool(soak.content_doubt), soak.content_doubt),
        (soak.verdict != "clean", f"its verdict is {soak.verdict}"),
        (soak.hours < SOAK_HOURS, f"it lasted {soak.hours:g} h"),
        (soak.max_in_flight != JOBS_PROVEN, f"it had at most {soak.max_in_flight} in flight"),
        (soak.package_hash != package_hash, "it ran another package"),
        (soak.versions != dict(facts.versions), "it ran on other versions"),
        (soak.profile != facts.versions.get("profile", ""), f"it ran on profile {soak.profile!r}"),
        (soak.figures_sha256 != facts.figures_sha256, other_figures("it ran on", soak.figures_sha256, facts)),
        (bool(irreproducible := doubt_about_commit(soak.commit)), irreproducible),
    )
    found = [text for is_wrong, text in doubts if is_wrong]
    return Check(
        SOAK_CHECK,
        not found,
        f"clean, at least {SOAK_HOURS} h with {JOBS_PROVEN} in flight, of a commit, same package, versions and figures",
        {"hours": soak.hours, "commit": soak.commit, "verdict": soak.verdict, "doubt": "; ".join(found)},
    )

"""Packages nobody would make: whatever was done to a good one, the answer is a finding or a PackageError."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import package_rig as rig
import pytest
from drafts import GOOD, Draft, toy
from fuzz_reader import Target
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calserve.package.fault import PackageError
from calserve.package.gates import How, inspect, verdict_of
from calserve.package.gates.finding import MAX_FINDINGS
from calserve.package.reader import open_models

many = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def judge(root: Path) -> str:
    """The verdict, after asking every way there is and holding the answers against each other."""
    verdict = verdict_of(inspect(root))
    assert len(verdict.findings) <= 6 * (MAX_FINDINGS + 1)
    assert all(finding.sentence.isprintable() and len(finding.sentence) <= 400 for finding in verdict.findings)
    fast = verdict_of(inspect(root, How(is_hashed=False)))
    if verdict.verdict != "fail":
        assert fast.verdict != "fail"
    refusal = next((f.rule for f in verdict.findings if f.severity == "fail"), None)
    if refusal is None:
        open_models(root)
    else:
        with pytest.raises(PackageError) as caught:
            open_models(root)
        assert caught.value.fault.rule == refusal
    return verdict.verdict


# --- bytes --------------------------------------------------------------------------------------------------------


@st.composite
def mangled(draw: st.DrawFn, content: bytes) -> bytes:
    """`content` after up to three changes: bytes set, cut, doubled, put in, or everything from some place on gone."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        end = draw(st.integers(at, min(len(data), at + 64)))
        change = draw(st.sampled_from(("set", "cut", "double", "insert", "truncate")))
        if change == "set":
            data[at:end] = draw(st.binary(min_size=end - at, max_size=end - at))
        elif change == "cut":
            del data[at:end]
        elif change == "double":
            data[at:at] = data[at:end] * draw(st.integers(1, 50))
        elif change == "insert":
            data[at:at] = draw(st.binary(max_size=64))
        else:
            del data[at:]
    return bytes(data)


@pytest.mark.slow
@given(data=st.data())
@many
def test_package_with_mangled_bytes_gives_a_verdict(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as base:
        root = GOOD[data.draw(st.sampled_from(sorted(GOOD)))]().write(Path(base) / "p")
        names = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
        name = data.draw(st.sampled_from(names))
        content = (root / name).read_bytes()
        (root / name).write_bytes(data.draw(mangled(content)))
        if data.draw(st.booleans()) and name != "checksums.sha256":
            rig.list_files(root)
            judge(root)
        elif (root / name).read_bytes() != content:
            assert judge(root) == "fail"


# --- values -------------------------------------------------------------------------------------------------------

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([10**9, 2**31, 2**32 - 1, 2**40, 2**50, 2**63, 10**30, -(2**63), 1.5, 1e308, -0.0]),
    st.text(max_size=20),
    st.sampled_from(["..", "/etc/passwd", "a\x1b[31m", "\ud800", "checksums.sha256", "manifest.yaml", "toy", "step"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


def places(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a tree of plain data, but its root."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inner:
        yield (*at, key)
        yield from places(value, (*at, key))


def changed(draw: st.DrawFn, tree: Any) -> None:
    """One value of `tree` replaced, removed, doubled or moved to another name."""
    place = draw(st.sampled_from(list(places(tree))))
    holder = tree
    for key in place[:-1]:
        holder = holder[key]
    key = place[-1]
    change = draw(st.sampled_from(("replace", "replace", "remove", "double", "rename")))
    if change == "replace":
        holder[key] = draw(values)
    elif change == "remove":
        del holder[key]
    elif change == "double" and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif isinstance(holder, dict):
        holder[draw(st.text(max_size=8))] = holder.pop(key)


@st.composite
def changed_drafts(draw: st.DrawFn) -> Draft:
    draft = GOOD[draw(st.sampled_from(sorted(GOOD)))]()
    parts = [draft.manifest, draft.manifest, draft.memory, draft.compatibility, *draft.goldens.values()]
    for _ in range(draw(st.integers(1, 3))):
        changed(draw, draw(st.sampled_from(parts)))
    return draft


@pytest.mark.slow
@given(draft=changed_drafts())
@many
def test_package_with_changed_values_gives_a_verdict(draft: Draft) -> None:
    with tempfile.TemporaryDirectory() as base:
        judge(draft.write(Path(base) / "p"))


@st.composite
def changed_tokenizers(draw: st.DrawFn) -> bytes:
    parts = {"added_tokens": [ADDED], "normalizer": REPLACE, "pre_tokenizer": SPLIT}
    tree = {**json.loads(rig.TOKENIZER), **copy.deepcopy(parts)}
    for _ in range(draw(st.integers(1, 3))):
        changed(draw, tree)
    return json.dumps(tree).encode()


ADDED = {
    "id": 100, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
    "special": True,
}  # fmt: skip
REPLACE = {"type": "Replace", "pattern": {"Regex": "a{2,3}"}, "content": "b"}
SPLIT = {"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Isolated", "invert": False}


@pytest.mark.slow
@given(content=changed_tokenizers())
@many
def test_tokenizer_with_changed_values_gives_a_verdict(content: bytes) -> None:
    draft = toy()
    draft.retext("tokenizer", content)
    with tempfile.TemporaryDirectory() as base:
        judge(draft.write(Path(base) / "p"))


# --- files --------------------------------------------------------------------------------------------------------


def _rename(root: Path, one: Path, other: Path) -> None:
    one.rename(one.with_name("renamed"))


def _swap(root: Path, one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    if other.exists():
        other.rename(one)
    aside.rename(other)


def _link_to_other(root: Path, one: Path, other: Path) -> None:
    one.unlink()
    one.symlink_to(other)


def _link_outside(root: Path, one: Path, other: Path) -> None:
    outside = root.parent / "outside"
    outside.write_bytes(one.read_bytes())
    one.unlink()
    one.symlink_to(outside)


def _loop(root: Path, one: Path, other: Path) -> None:
    one.unlink()
    one.symlink_to(one.name)


def _pipe(root: Path, one: Path, other: Path) -> None:
    one.unlink()
    os.mkfifo(one)


def _folder(root: Path, one: Path, other: Path) -> None:
    one.unlink()
    one.mkdir()


def _gone(root: Path, one: Path, other: Path) -> None:
    one.unlink()


@pytest.mark.slow
@given(data=st.data(), is_relisted=st.booleans())
@many
def test_package_with_moved_files_is_refused(data: st.DataObject, is_relisted: bool) -> None:
    with tempfile.TemporaryDirectory() as base:
        root = GOOD[data.draw(st.sampled_from(sorted(GOOD)))]().write(Path(base) / "p")
        files = sorted(path for path in root.rglob("*") if path.is_file())
        one, other = data.draw(st.lists(st.sampled_from(files), min_size=2, max_size=2, unique=True))
        moves = (_rename, _swap, _link_to_other, _link_outside, _loop, _pipe, _folder, _gone)
        is_same = one.read_bytes() == other.read_bytes()
        change = data.draw(st.sampled_from(moves))
        change(root, one, other)
        is_relisted = is_relisted and "checksums.sha256" not in (one.name, other.name)
        if is_relisted:
            rig.list_files(root)
        verdict = judge(root)
        if change is not _swap or (not is_same and not is_relisted):
            assert verdict == "fail"


def test_package_that_is_an_archive_is_told_what_to_do(tmp_path: Path) -> None:
    """Archives are not read at all, so nothing in one can slip out of it."""
    root = toy().write(tmp_path / "p")
    archive = Path(shutil.make_archive(str(tmp_path / "p"), "zip", root))
    with pytest.raises(PackageError, match=r"archives are not read, unpack it first\.$"):
        open_models(archive)


def test_package_that_changes_while_it_is_read_is_what_was_hashed_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between gate A and gate B the manifest becomes another: the bytes that were hashed are the ones decoded."""
    from calserve.package.gates import run

    root = toy().write(tmp_path / "p")
    usual = run._CHECKS["B"]

    def late(work: Any, findings: Any) -> None:
        (root / "manifest.yaml").write_text("target: another\n")
        usual(work, findings)

    monkeypatch.setitem(run._CHECKS, "B", late)
    assert open_models(root)[0].model == "toy"
    with pytest.raises(PackageError, match="does not match its checksum"):
        open_models(root)


def test_package_file_too_large_to_keep_that_changes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from calserve.package.gates import files, run

    monkeypatch.setattr(files, "KEPT_BYTES", 0)
    root = toy().write(tmp_path / "p")
    usual = run._CHECKS["B"]

    def late(work: Any, findings: Any) -> None:
        (root / "manifest.yaml").write_text("target: another\n")
        usual(work, findings)

    monkeypatch.setitem(run._CHECKS, "B", late)
    with pytest.raises(PackageError, match="was changed while the package was read"):
        open_models(root)


# --- bombs --------------------------------------------------------------------------------------------------------

# Each in a process of its own: what it takes at most, in MiB, and in seconds of processor time.
MEMORY_MIB_MAX = 900
CPU_SECONDS_MAX = 60
CHILD = """
import resource, sys
from pathlib import Path
from calserve.package.gates import inspect, verdict_of
verdict = verdict_of(inspect(Path(sys.argv[1])))
use = resource.getrusage(resource.RUSAGE_SELF)
# not ru_maxrss: that begins with what the process that started this one had
peak_kib = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(verdict.verdict, peak_kib // 1024, int(use.ru_utime + use.ru_stime), verdict.findings[0].rule)
"""


def _nested(opening: str, closing: str, depth: int) -> bytes:
    return (opening * depth + "0" + closing * depth).encode()


def _tokenizer(**parts: Any) -> bytes:
    return json.dumps({**json.loads(rig.TOKENIZER), **parts}).encode()


def _regex(pattern: str) -> bytes:
    return _tokenizer(pre_tokenizer={**SPLIT, "pattern": {"Regex": pattern}})


HIGH = {"type": "WordLevel", "vocab": {"w0": 4_294_967_295}, "unk_token": "w0"}
MANY = [{**ADDED, "id": i, "content": f"<{i}>"} for i in range(200_000)]
BOMBS: dict[str, tuple[str, bytes, str]] = {
    "yaml-many": ("manifest.yaml", b"a: [" + b"[]," * 1_390_000 + b"]", "B03"),
    "yaml-deep": ("manifest.yaml", b"[" * 2_000_000, "B03"),
    "yaml-keys": ("manifest.yaml", b"".join(b"k%d: 1\n" % i for i in range(300_000)), "B03"),
    "yaml-laughs": ("manifest.yaml", b"a: &a [x,x,x,x]\nb: &b [*a,*a,*a,*a]\nc: [*b,*b,*b,*b]\n", "B03"),
    "yaml-long": ("manifest.yaml", b'a: "' + b"x" * 4_000_000 + b'"', "B03"),
    "yaml-integer": ("manifest.yaml", b"a: " + b"9" * 4_000_000, "B03"),
    "json-many": ("memory.json", b"[" + b"[]," * 1_390_000 + b"0]", "B04"),
    "json-deep": ("goldens.json", _nested("[", "]", 1_000_000), "B04"),
    "json-integer": ("goldens.json", b"9" * 4_000_000, "B04"),
    "json-text": ("goldens.json", json.dumps({**rig.GOLDENS, "numerics": "x" * 4_000_000}).encode(), "B04"),
    "list-long": ("checksums.sha256", b"0" * 64 + b"  x\n" * 10, "A05"),
    "tokenizer-pattern": ("tokenizer.json", _regex("(((a{1000}){1000}){1000}){1000}"), "E03"),
    "tokenizer-nested": ("tokenizer.json", _regex("(" * 2000 + ")" * 2000), "E03"),
    "tokenizer-id": ("tokenizer.json", _tokenizer(model=HIGH), "E05"),
    "tokenizer-deep": ("tokenizer.json", _nested('{"model":', "}", 500_000), "E04"),
    "tokenizer-many": ("tokenizer.json", _tokenizer(added_tokens=MANY), "E03"),
    "template-loop": ("chat_template.jinja", b"{% for i in range(10**9) %}{{ i }}{% endfor %}{{ ", "E07"),
    "template-deep": ("chat_template.jinja", b"{{ " + b"(" * 100_000, "E07"),
    "template-integer": ("chat_template.jinja", b"{{ " + b"9" * 100_000 + b" }}", "E07"),
    "template-long": ("chat_template.jinja", b"x" * 2_000_000, "E07"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS)
def test_package_that_is_a_bomb_is_refused_within_bounds(bomb: str, tmp_path: Path) -> None:
    name, content, rule = BOMBS[bomb]
    draft = toy()
    role = {"tokenizer.json": "tokenizer", "chat_template.jinja": "chat_template"}.get(name)
    if role is not None:
        draft.retext(role, content)
        root = draft.write(tmp_path / "p")
    else:
        root = draft.write(tmp_path / "p")
        (root / name).write_bytes(content)
        if name != "checksums.sha256":
            rig.list_files(root)
    source = str(Path(__file__).parents[2] / "src")
    told = subprocess.run(
        [sys.executable, "-c", CHILD, str(root)], capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "PYTHONPATH": source},
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    verdict, mib, seconds, found = told.stdout.split()
    assert (verdict, found) == ("fail", rule)
    assert int(mib) < MEMORY_MIB_MAX
    assert int(seconds) < CPU_SECONDS_MAX


CLAIMS = {
    "context": lambda draft: draft.model().update(context=10**9, trained_context=10**9),
    "lanes": lambda draft: draft.model().update(lanes=10**9, profiles=[10**9]),
    "vocabulary": lambda draft: draft.model().update(vocab_size=10**9),
    "shape": lambda draft: draft.tensor("step", "input_ids").update(shape=[2**40] * 8),
    "layers": lambda draft: draft.model()["kv"].update(n_layers=2**40, n_kv_heads=2**40, head_dim=2**40),
    "section": lambda draft: draft.section("toy.kv").update(bytes=2**50, address=2**50),
    "units": lambda draft: draft.memory["models"][0].update(kv_units=2**40),
    "tile": lambda draft: draft.graph("step").update(logits_tile=10**9),
    "tokens": lambda draft: draft.graph("step").update(max_job_tokens=10**9, max_row_tokens=10**9, max_tokens=10**9),
    "token": lambda draft: draft.goldens["goldens.json"]["goldens"][0].update(prompt_ids=[10**9]),
    "end": lambda draft: draft.model().update(eos_token_ids=[10**9]),
    "scratch": lambda draft: draft.graph("step").update(scratch_units=[7, 10**9]),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_package_that_claims_a_thousand_million_is_refused(claim: str, tmp_path: Path) -> None:
    draft = toy()
    CLAIMS[claim](draft)
    assert judge(draft.write(tmp_path / "p")) == "fail"


# --- the fuzzer ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_fuzzer_of_the_reader_survives_its_seeds_and_their_halves(tmp_path: Path) -> None:
    """What `make fuzz` runs for ten minutes under coverage guidance."""
    target = Target(tmp_path / "p")
    seeds = list(target.seeds())
    assert len(seeds) > 500
    for seed in seeds[::12]:
        target.one_input(seed)
        target.one_input(seed[: len(seed) // 2])
        target.one_input(bytes([seed[0] & 0x7F]) + seed[1:])
    target.one_input(b"")


def test_fuzzer_of_the_reader_fails_where_a_reader_lets_something_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from calserve.package.gates import schema

    def breaks(data: bytes, kind: Any) -> Any:
        raise KeyError("models")

    monkeypatch.setattr(schema, "decode_yaml", breaks)
    target = Target(tmp_path / "p")
    with pytest.raises(KeyError):
        target.one_input(next(target.seeds()))

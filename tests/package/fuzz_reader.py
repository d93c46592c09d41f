"""A coverage-guided fuzzer of whatever reads a package: `python tests/package/fuzz_reader.py -max_total_time=600`.

One input is one file of one good package, made another: its first byte chooses package and file, and whether the list
of checksums follows; its second how the rest is read: as the whole content, as cuts and insertions in the good one, or
as changes of values in its tree, which is what comes past the schema. Whatever it is, the gates must give findings or
pass, within bounded time and memory (libFuzzer's -timeout and -rss_limit_mb). Needs atheris; `one_input` itself does
not, and the suite runs it.
"""

from __future__ import annotations

import copy
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

SLOTS = 128  # choices of package and file; the high bit says whether the list follows
LIST = "checksums.sha256"
WHOLE, EDITS, VALUES = 0, 1, 2
# What a changed value may become; the last byte of a change chooses.
VALUES_TRIED: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, 3, 4, 7, 8, 63, 64, 65, 99, 100, 101, 1000, -1, 10**9, 2**31, 2**40, 2**50, 2**63,
    10**30, 1.5, 1e308, "", "toy", "a", "b", "step", "fixed", "free", "lanes", "paged", "sim", "packer", "vendor",
    "board", "..", "float32", "int64", "exact", "\ud800", "memory.json", [], [1], [1, 4], [0, 0], ["decode"],
    ["prefill"], {}, {"a": 1},
)  # fmt: skip


class Target:
    """Good packages on disk, and one file of one of them replaced at a time."""

    def __init__(self, base: Path) -> None:
        from drafts import GOOD

        self.roots = [GOOD[kind]().write(base / kind) for kind in sorted(GOOD)]
        self.files: list[tuple[Path, str]] = []
        self.digests: dict[Path, dict[str, str]] = {}
        for root in self.roots:
            names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
            self.files += [(root, name) for name in names if not name.endswith((".bin", ".xml"))]
            self.digests[root] = {name: _sha256((root / name).read_bytes()) for name in names if name != LIST}
        assert len(self.files) <= SLOTS

    def seeds(self) -> Iterator[bytes]:
        """Each file as it is, with a byte cut out, and with each of its values made another: where a run starts."""
        for number, (root, name) in enumerate(self.files):
            head = number | 0x80
            content = (root / name).read_bytes()
            yield bytes([head, WHOLE]) + content
            yield bytes([head, EDITS, 0, len(content) // 2 % 256, 1, 0])
            for place in range(min(400, len(list(_places(_tree(name, content)))))):
                yield bytes([head, VALUES, place >> 8, place & 0xFF, place % len(VALUES_TRIED)])

    def one_input(self, data: bytes) -> None:
        """Raises whatever the reader lets through, which it never should."""
        from calserve.package.gates import How, inspect, verdict_of

        if not data:
            return
        root, name = self.files[(data[0] & 0x7F) % len(self.files)]
        path = root / name
        usual = path.read_bytes(), (root / LIST).read_bytes()
        try:
            content = made(name, usual[0], data[1:])
            path.write_bytes(content)
            if data[0] & 0x80 and name != LIST:
                self._relist(root, {**self.digests[root], name: _sha256(content)})
            verdict = verdict_of(inspect(root, How(is_hashed=bool(data[0] & 0x80))))
            assert all(finding.sentence.isprintable() for finding in verdict.findings)
            if verdict.exit_code == 0:  # the rarer way, and the one that goes on
                self._open(root)
        finally:
            path.write_bytes(usual[0])
            (root / LIST).write_bytes(usual[1])

    @staticmethod
    def _open(root: Path) -> None:
        from calserve.package.fault import PackageError
        from calserve.package.reader import open_models

        try:
            open_models(root)
        except PackageError as error:
            if error.fault.rule != "A12":  # what was not hashed before is hashed now
                raise

    @staticmethod
    def _relist(root: Path, digests: dict[str, str]) -> None:
        (root / LIST).write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items())))


def made(name: str, good: bytes, how: bytes) -> bytes:
    """The content that `how` makes of a good one."""
    mode, rest = (how[0] % 3, how[1:]) if how else (WHOLE, b"")
    if mode == WHOLE:
        return rest
    tree = _tree(name, good)
    if mode == EDITS or not isinstance(tree, dict):
        return _edited(good, rest)
    for at in range(0, len(rest) - 2, 3):
        places = list(_places(tree))
        if not places:
            break
        holder, key = places[(rest[at] << 8 | rest[at + 1]) % len(places)]
        choice = rest[at + 2]
        if choice < len(VALUES_TRIED):
            holder[key] = copy.deepcopy(VALUES_TRIED[choice])
        elif isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif choice % 2:
            del holder[key]
        else:
            holder[f"{key}x"] = holder.pop(key)
    return json.dumps(tree).encode()  # which is YAML too


def _edited(good: bytes, rest: bytes) -> bytes:
    """Each edit: where (two bytes), how much is cut, how much of what follows is put there."""
    data, at = bytearray(good), 0
    while at + 4 <= len(rest):
        place = (rest[at] << 8 | rest[at + 1]) % (len(data) + 1)
        size = rest[at + 3] % 32
        data[place : place + rest[at + 2]] = rest[at + 4 : at + 4 + size]
        at += 4 + size
    return bytes(data)


def _tree(name: str, content: bytes) -> Any:
    if name.endswith(".json"):
        return json.loads(content)
    return yaml.safe_load(content) if name.endswith(".yaml") else None


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """(holder, key) of every value in a tree, but its root."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield tree, key
        yield from _places(value)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main() -> None:
    import atheris

    with atheris.instrument_imports(include=["calserve.package", "calserve.text", "yaml"]):
        import calserve.package.gates
        import calserve.package.reader
        import calserve.text.template  # noqa: F401

    with tempfile.TemporaryDirectory(prefix="calserve-fuzz-") as base:
        target = Target(Path(base) / "packages")
        corpus = Path(base) / "corpus"
        corpus.mkdir()
        for number, seed in enumerate(target.seeds()):
            (corpus / f"{number:05}").write_bytes(seed)
        limits = ["-timeout=10", "-rss_limit_mb=2048", "-max_len=8192", "-len_control=0", "-print_final_stats=1"]
        atheris.Setup([sys.argv[0], *limits, *sys.argv[1:], str(corpus)], target.one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()

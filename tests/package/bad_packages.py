"""For every rule a package that this rule alone rejects, and for rules about a board one that this board rejects."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import package_rig as rig
from drafts import Draft, lanes, pair, toy, vendor

from calserve.package.gates.compatibility import NoSuchProfile, OpenTrial
from calserve.runtime.contract import BoardFacts, BoardPackage, ChipFacts, Evidence

Bad = Callable[[Path], Path]
LIST = "checksums.sha256"


def _draft(change: Callable[[Draft], object], base: Callable[[], Draft] = toy) -> Bad:
    """The draft after `change`, with a list that holds."""

    def write(root: Path) -> Path:
        draft = base()
        change(draft)
        return draft.write(root)

    return write


def _after(change: Callable[[Path], object]) -> Bad:
    """The toy as written, changed behind its list."""

    def write(root: Path) -> Path:
        toy().write(root)
        change(root)
        return root

    return write


def _append(line: str) -> Bad:
    def change(root: Path) -> None:
        with (root / LIST).open("a") as file:
            file.write(line)

    return _after(change)


def _archive(root: Path) -> Path:
    path = root.with_suffix(".zip")
    path.write_bytes(b"PK\x03\x04")
    return path


def _unreadable(root: Path) -> None:
    """A folder deeper than a path may be long, which no scan can open."""
    at = os.open(root, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=at)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)


def _many(root: Path) -> None:
    for number in range(4100):
        (root / f"f{number}").touch()


def _big_manifest(draft: Draft) -> None:
    draft.model()["settings"] = {f"S{i}": "v" * 40_000 for i in range(110)}


def _set(path: str, value: object) -> Callable[[Draft], None]:
    """path: `model.context`, `graph.step.max_tokens`, `memory.plan`, `figures.kv_units`, `section.toy.kv.bytes`, ..."""

    def change(draft: Draft) -> None:
        head, _, rest = path.partition(".")
        name, _, key = rest.rpartition(".")
        at: dict[str, Any] = {
            "manifest": lambda: draft.manifest,
            "model": draft.model,
            "kv": lambda: draft.model()["kv"],
            "files": lambda: draft.model()["files"],
            "graph": lambda: draft.graph(name),
            "memory": lambda: draft.memory,
            "figures": lambda: draft.memory["models"][0],
            "chip": lambda: draft.memory["chips"][0],
            "section": lambda: draft.section(name),
            "compatibility": lambda: draft.compatibility,
            "goldens": lambda: draft.goldens["goldens.json"],
            "golden": lambda: draft.goldens["goldens.json"]["goldens"][0],
        }[head]()
        at[key or rest] = value

    return change


def _all(*changes: Callable[[Draft], object]) -> Callable[[Draft], None]:
    def change(draft: Draft) -> None:
        for each in changes:
            each(draft)

    return change


def _twice(items: list[Any]) -> None:
    items.append(copy.deepcopy(items[0]))


def _second_graph(draft: Draft) -> None:
    """Another graph that does just what `step` does."""
    graph = copy.deepcopy(draft.graph("step"))
    graph["name"] = "again"
    draft.model()["graphs"].append(graph)
    for role in ("graph", "weights"):
        draft.model()["files"][f"{role}:again"] = draft.model()["files"][f"{role}:step"]
    draft.model()["files"]["graph:again"] = "graphs/again.xml"
    draft.files["graphs/again.xml"] = b"<net/>"


def _twin_names(draft: Draft) -> None:
    _second_graph(draft)
    draft.graph("again")["name"] = "step"
    for role in ("graph", "weights"):
        del draft.model()["files"][f"{role}:again"]
    del draft.files["graphs/again.xml"]


def _twin_models(draft: Draft) -> None:
    draft.model(1)["name"] = "a"


def _without(draft: Draft, graph: str) -> None:
    draft.model()["graphs"].remove(draft.graph(graph))
    draft.recount()


def _surplus_decode(draft: Draft) -> None:
    """A graph for a batch that is no profile."""
    graph = copy.deepcopy(draft.graph("decode_b4"))
    graph["name"], graph["batch"]["rows"], graph["max_job_tokens"] = "decode_b2", 2, 2
    for tensor in (*graph["inputs"], *graph["outputs"]):
        tensor["shape"][0], tensor["bytes"] = 2, tensor["bytes"] // 2
    draft.model()["graphs"].append(graph)


def _retype(draft: Draft) -> None:
    tensor = draft.tensor("step", "logits")
    tensor["dtype"] = "float16"
    draft.resize(tensor, [4, 100])


def _bytes_of_tensor(draft: Draft) -> None:
    draft.tensor("step", "input_ids")["bytes"] = 511
    draft.recount()


def _more_input(draft: Draft) -> None:
    draft.graph("step")["inputs"].append(
        {"name": "input_ids_2", "shape": [1], "dtype": "int32", "bytes": 4, "sliceable": False}
    )
    draft.recount()


def _more_output(draft: Draft) -> None:
    _twice(draft.graph("step")["outputs"])
    draft.graph("step")["outputs"][1]["name"] = "hidden"
    draft.recount()


def _drop_input(draft: Draft, graph: str, *names: str) -> None:
    it = draft.graph(graph)
    it["inputs"] = [tensor for tensor in it["inputs"] if tensor["name"] not in names]
    draft.recount()


def _float_ids(draft: Draft) -> None:
    tensor = draft.tensor("step", "past_lens")
    tensor["dtype"] = "float32"


def _fixed_rows(draft: Draft) -> None:
    """A prefill of one row that is lane 0, in a model of four lanes."""
    draft.graph("prefill")["row_binding"] = "fixed"


def _overlap(draft: Draft) -> None:
    draft.section("toy.io")["address"] = 2 << 20


def _kv_on_one_chip(draft: Draft) -> None:
    """A model over chips 0 and 1, all of whose KV is on chip 0."""
    draft.model()["chip_mask"] = draft.graph("step")["chip_mask"] = 3
    draft.section("toy.weights")["chip_mask"] = draft.section("toy.io")["chip_mask"] = 3
    draft.memory["chips"].append({"chip": 1, "bytes": 6 << 20, "guard_bytes": 0})


def _two_weights(draft: Draft) -> None:
    """Weights in two pieces of one name; together they are as large as they should be."""
    section = draft.section("toy.weights")
    section["bytes"] = 500
    draft.memory["sections"].append({**section, "address": 1 << 20})


def _foreign_section(draft: Draft) -> None:
    draft.memory["sections"].append(
        {
            "name": "x.code",
            "model": "x",
            "kind": "code",
            "chip_mask": 1,
            "address": 5 << 20,
            "bytes": 1,
            "writable": False,
        }
    )


def _empty_section(draft: Draft) -> None:
    draft.memory["sections"].append(
        {"name": "toy.code", "model": "toy", "kind": "code", "chip_mask": 1, "address": 5 << 20, "bytes": 0,
         "writable": False}
    )  # fmt: skip


def _section_on_chip_1(draft: Draft) -> None:
    draft.memory["sections"].append(
        {
            "name": "toy.code",
            "model": "toy",
            "kind": "code",
            "chip_mask": 2,
            "address": 0,
            "bytes": 1,
            "writable": False,
        }
    )
    draft.memory["chips"].append({"chip": 1, "bytes": 1, "guard_bytes": 0})


def _same_chip(draft: Draft) -> None:
    """b beside a on chip 0, at addresses of its own."""
    draft.model(1)["chip_mask"] = draft.graph("step", 1)["chip_mask"] = 1
    for section in draft.memory["sections"]:
        if section["model"] == "b":
            section["chip_mask"], section["address"] = 1, section["address"] + (6 << 20)
    draft.memory["chips"] = [{"chip": 0, "bytes": 12 << 20, "guard_bytes": 0}]


def _board_plan(draft: Draft) -> None:
    draft.memory["plan"] = "board"


def _one_text(draft: Draft) -> None:
    """The template's file for the tokenizer too."""
    draft.model()["files"]["tokenizer"] = "chat_template.jinja"
    del draft.files["tokenizer.json"]


def _scratch(draft: Draft) -> None:
    draft.graph("step")["scratch_units"] = [7]


def _added_tokens(draft: Draft) -> None:
    tree = json.loads(rig.TOKENIZER)
    token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tree["added_tokens"] = [{"id": i, "content": f"a{i}", **token} for i in range(65_537)]
    draft.retext("tokenizer", json.dumps(tree).encode())


def _high_token(draft: Draft) -> None:
    tree = json.loads(rig.TOKENIZER)
    tree["model"]["vocab"]["w100"] = 100
    draft.retext("tokenizer", json.dumps(tree).encode())


def _short_vocabulary(draft: Draft) -> None:
    tree = json.loads(rig.TOKENIZER)
    del tree["model"]["vocab"]["w2"]
    draft.retext("tokenizer", json.dumps(tree).encode())


def _omitting(draft: Draft) -> None:
    draft.graph("decode_b4")["inactive_lane_policy"] = "omit"


def _kv_in_two(draft: Draft) -> None:
    """The pool in two pieces; together they are as large as it should be."""
    section = draft.section("toy.kv")
    section["bytes"] = 16384
    draft.memory["sections"].append({**section, "name": "toy.more", "address": 5 << 20})


def _unsaid_workspace(draft: Draft) -> None:
    draft.memory["sections"].append(
        {"name": "toy.workspace", "model": "toy", "kind": "workspace", "chip_mask": 1, "address": 5 << 20, "bytes": 1,
         "writable": True}
    )  # fmt: skip


def tokenizer_with(**parts: Any) -> Callable[[Draft], None]:
    """The toy's tokenizer with other parts."""

    def change(draft: Draft) -> None:
        draft.retext("tokenizer", json.dumps({**json.loads(rig.TOKENIZER), **parts}).encode())

    return change


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replace_by(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


BAD: dict[str, Bad] = {
    "A01": _archive,
    "A02": _after(_unreadable),
    "A03": _after(lambda root: (root / LIST).unlink()),
    "A04": _after(lambda root: (root / LIST).write_bytes(b" " * ((1 << 20) + 1))),
    "A05": _append("not a line\n"),
    "A06": _append("0" * 64 + "  ../outside\n"),
    "A07": _append("0" * 64 + "  memory.json\n"),
    "A08": _after(lambda root: (root / "link").symlink_to("memory.json")),
    "A09": _after(_many),
    "A10": _after(lambda root: (root / "memory.json").unlink()),
    "A11": _after(lambda root: (root / "extra.bin").write_bytes(b"x")),
    "A12": _after(lambda root: (root / "graphs/step.bin").write_bytes(bytes(999) + b"\1")),
    "A13": _after(lambda root: (root / "memory.json").chmod(0o664)),
    "B01": lambda root: _rewrite(toy().write(root), "manifest.yaml", None),
    "B02": _draft(_big_manifest),
    "B03": _draft(_set("manifest.surprise", 1)),
    "B04": _draft(_set("memory.surprise", 1)),
    "B05": _draft(lambda draft: draft.files.update({"build-provenance.json": b"[]"})),
    "B06": _draft(lambda draft: draft.model()["files"].pop("weights:step") and draft.files.pop("graphs/step.bin")),
    "B07": _draft(_all(_set("files.weights:other", "graphs/other.bin"),
                       lambda draft: draft.files.update({"graphs/other.bin": b"x"}))),
    "B08": _draft(_all(_set("files.tokenizer", "../tokenizer.json"), lambda draft: draft.files.pop("tokenizer.json"))),
    "B09": _draft(lambda draft: draft.files.pop("tokenizer.json")),
    "B10": _draft(_one_text),
    "B11": _draft(lambda draft: draft.files.update({"graphs/step.xml": b""})),
    "B12": _draft(lambda draft: draft.files.update({"notes.txt": b"x"})),
    "B13": _draft(_twin_models, pair),
    "B14": _draft(_twin_names),
    "B15": _draft(lambda draft: _twice(draft.graph("step")["inputs"])),
    "B16": _draft(_set("graph.step.tasks", ["prefill", "decode", "decode"])),
    "B17": _draft(_set("graph.step.tasks", ["decode"])),
    "B18": _draft(_set("model.profiles", [4, 1, 4])),
    "B19": _draft(lambda draft: _without(draft, "decode_b1"), lanes),
    "B20": _draft(_surplus_decode, lanes),
    "B21": _draft(_second_graph),
    "B22": _draft(_set("model.settings", {"INFERENCE_PRECISION_HINT": "f32", "board_profile": "/etc/passwd"})),
    "B23": _draft(lambda draft: draft.files.update({"graphs/step.xml": b"\x08\x07ONNX" * 9})),
    "C01": _draft(_bytes_of_tensor),
    "C02": _draft(_more_input),
    "C03": _draft(_more_output),
    "C04": _draft(_set("graph.step.csr_names", ["length"])),
    "C05": _draft(_retype),
    "C06": _draft(lambda draft: draft.resize(draft.tensor("decode_b4", "lengths"), [3]), lanes),
    "C07": _draft(_set("graph.decode_b4.inactive_lane_policy", None), lanes),
    "C08": _draft(lambda draft: _drop_input(draft, "decode_b4", "counts", "lengths"), lanes),
    "C09": _draft(_all(_set("graph.step.max_tokens", 63), _set("graph.step.max_row_tokens", 63))),
    "C10": _draft(_set("model.trained_context", 63)),
    "C11": _draft(_set("graph.step.min_chunk_tokens", 65)),
    "C12": _draft(lambda draft: draft.resize(draft.tensor("step", "block_indices"), [1])),
    "C13": _draft(_float_ids),
    "C14": _draft(_fixed_rows, lanes),
    "C15": _draft(_omitting, lanes),
    "D01": _draft(lambda draft: _twice(draft.memory["models"])),
    "D02": _draft(_set("figures.weight_bytes", 999)),
    "D03": _draft(_all(_set("figures.kv_unit_bytes", 2048), _set("figures.kv_bytes", 16384))),
    "D04": _draft(_set("figures.kv_bytes", 32767)),
    "D05": _draft(_all(_set("figures.kv_units", 1), _set("figures.kv_bytes", 4096))),
    "D06": _draft(_all(_set("figures.kv_units", 7), _set("figures.kv_bytes", 28672))),
    "D07": _draft(_set("figures.io_bytes", 2763)),
    "D08": _draft(_board_plan),
    "D09": _draft(_all(_set("memory.plan", "vendor"), _set("chip.guard_bytes", 1 << 30))),
    "D10": _draft(_two_weights),
    "D11": _draft(_foreign_section),
    "D12": _draft(_section_on_chip_1),
    "D13": _draft(_set("graph.step.chip_mask", 2)),
    "D14": _draft(_kv_on_one_chip),
    "D15": _draft(_overlap),
    "D16": _draft(_empty_section),
    "D17": _draft(_set("section.toy.kv.writable", False)),
    "D18": _draft(_set("section.toy.kv.bytes", 32767)),
    "D19": _draft(lambda draft: _twice(draft.memory["chips"])),
    "D20": _draft(_set("chip.bytes", (4 << 20) + 2763)),
    "D21": _draft(_set("chip.guard_bytes", (1 << 30) - 1), vendor),
    "D22": _draft(_same_chip, pair),
    "D23": _draft(lambda draft: draft.model(1).update(pinned=False), pair),
    "D24": _draft(lambda draft: draft.files.update({"graphs/step.bin": bytes(999)})),
    "D25": _draft(_scratch),
    "D26": _draft(_kv_in_two),
    "D27": _draft(_unsaid_workspace),
    "D28": _draft(_set("graph.decode_b4.max_tokens", 1 << 40), lanes),
    "E01": _draft(_set("model.tokenizer_sha256", "0" * 64)),
    "E02": _draft(_set("model.chat_template_sha256", "0" * 64)),
    "E03": _draft(_added_tokens),
    "E04": _draft(lambda draft: draft.retext("tokenizer", b"{}")),
    "E05": _draft(_high_token),
    "E06": _draft(_short_vocabulary),
    "E07": _draft(lambda draft: draft.retext("chat_template", b"{% for %}")),
    "E08": _draft(_set("goldens.numerics", "fast")),
    "E09": _draft(_set("golden.margins", [1.5])),
    "E10": _draft(_set("golden.prompt_ids", [5, 100])),
    "E11": _draft(_all(_set("golden.prompt_ids", [5] * 63))),
    "E12": _draft(tokenizer_with(pre_tokenizer=_split("(a+)+$"))),
    "E13": _draft(tokenizer_with(normalizer=replace_by("a", "b" * 10**6))),
    "E14": _draft(_set("goldens.tolerance", 0.26)),
    "E15": _draft(_set("golden.margins", [0.0, 0.05])),
    "E16": _draft(_all(_set("model.numerics", "fast"), _set("goldens.numerics", "fast"),
                       _set("goldens.tolerance", 2.0))),
    "F01": _draft(_set("compatibility.target", "sim")),
    "F02": _draft(_set("compatibility.runtime", "openvino-genai>=1")),
    "F03": _draft(_set("compatibility.runtime", "openvino>=9999")),
    "F04": _draft(lambda draft: None, vendor),
    "F05": _draft(_set("compatibility.capabilities", ["telepathy"])),
    "F06": _draft(_set("compatibility.devices", [])),
}  # fmt: skip


def _rewrite(root: Path, name: str, content: bytes | None) -> Path:
    if content is None:
        (root / name).unlink()
    else:
        (root / name).write_bytes(content)
    rig.list_files(root)
    return root


# --- boards -------------------------------------------------------------------------------------------------------

GOOD_FACTS = BoardFacts(
    name="toy-board",
    simulated=False,
    chips=(ChipFacts(0, 2, 16 << 30), ChipFacts(1, 2, 16 << 30)),
    capabilities={"batch_lanes": Evidence.C0, "kv_share": Evidence.C1},
    versions={"device": "CPU"},
)


class ToyTrial:
    """A board that says of every model what it was told to say."""

    def __init__(self, facts: BoardFacts, answer: Any = None, missing: str = "") -> None:
        self.facts = facts
        self.missing = missing
        self.answer = answer
        self.tried: list[tuple[str, tuple[int, ...]]] = []

    def attempt(self, package: BoardPackage, chips: tuple[int, ...]) -> Any:
        self.tried.append((package.model, chips))
        return self.answer


def opening(trial: ToyTrial) -> OpenTrial:
    @contextmanager
    def open_trial(packages: tuple[BoardPackage, ...], chips: int) -> Any:
        if trial.missing:
            raise NoSuchProfile(trial.missing)
        yield trial

    return open_trial


def facts(**changes: Any) -> BoardFacts:
    return replace(GOOD_FACTS, **changes)


BAD_BOARDS: dict[str, tuple[Bad, ToyTrial]] = {
    "F07": (_draft(lambda draft: None, pair), ToyTrial(facts(chips=GOOD_FACTS.chips[:1]))),
    "F08": (_draft(_set("chip.guard_bytes", 1 << 20)), ToyTrial(facts(chips=(ChipFacts(0, 2, (7 << 20) - 1),)))),
    "F09": (_draft(lambda draft: None), ToyTrial(facts(versions={"device": "GPU"}))),
    "F10": (_draft(_set("compatibility.capabilities", ["kv_share"])), ToyTrial(GOOD_FACTS)),
    "F11": (_draft(lambda draft: None), ToyTrial(GOOD_FACTS, ("configure", "code 5"))),
    "F12": (_draft(lambda draft: None), ToyTrial(GOOD_FACTS, ("warm", "golden step 0: token 1 where 7 leads"))),
    "F13": (_draft(lambda draft: None), ToyTrial(GOOD_FACTS, missing="There is no board profile toy")),
}

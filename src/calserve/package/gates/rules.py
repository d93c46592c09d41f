"""Every rule a package is held against, as data.

Owns ids, sentences and severities; the gates name a rule by its id, `docs/package.md` prints the table, and the tests
hold a bad package for each. Must not know how a rule is checked. Ids are stable: a rule that goes leaves its id unused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

Severity = Literal["fail", "warning"]
GateName = Literal["A", "B", "C", "D", "E", "F"]

GATES: Final[Mapping[GateName, str]] = MappingProxyType(
    {
        "A": "files, sizes, hashes, permissions",
        "B": "manifest schema, exact names, nothing missing, surplus or repeated",
        "C": "graph contracts: tensors, CSRs, profiles, inactive lanes, logits",
        "D": "chips and memory: masks, addresses, reservations, KV",
        "E": "tokenizer, chat template, vocabulary, goldens",
        "F": "compatibility with the runtime and the board, golden run",
    }
)


@dataclass(frozen=True, slots=True)
class Rule:
    """id: gate's letter and a number. sentence: what must hold. severity: whether a breach refuses the package.
    needs_board: asked only where a board is at hand (`--full`)."""

    id: str
    sentence: str
    severity: Severity = "fail"
    needs_board: bool = False

    @property
    def gate(self) -> GateName:
        letter = self.id[0]
        assert letter in GATES
        return letter  # type: ignore[return-value]  # the assertion is what narrows it


_RULES: Final = (
    Rule("A01", "A package is a directory; archives are not read."),
    Rule("A02", "Every file of the package can be read."),
    Rule("A03", "`checksums.sha256` is there, as a regular file."),
    Rule("A04", "The list of checksums is at most 1 MiB."),
    Rule("A05", "Every line of the list is `sha256  name`, as `sha256sum` prints it, in UTF-8."),
    Rule("A06", "Every name in the list is a plain relative path inside the package."),
    Rule("A07", "No file is listed twice."),
    Rule("A08", "The package holds regular files and directories only: no links, devices, sockets or pipes."),
    Rule("A09", "The package holds at most 4096 files and directories."),
    Rule("A10", "Every listed file is there."),
    Rule("A11", "Every file is listed (but the list itself and `signature`)."),
    Rule("A12", "Every file has the sha256 it is listed with."),
    Rule("A13", "Only its owner may write a file or directory of the package.", "warning"),
    Rule("B01", "`manifest.yaml` is there."),
    Rule("B02", "A description (manifest, memory, compatibility, goldens, provenance) is at most 4 MiB."),
    Rule("B03", "`manifest.yaml` is plain YAML (no tags, aliases or repeated keys) and fits the schema."),
    Rule("B04", "memory, compatibility and goldens are JSON without repeated keys and fit the schema."),
    Rule("B05", "`build-provenance.json` is a JSON object."),
    Rule("B06", "Every role of the package, of each model and of each graph has a file."),
    Rule("B07", "No file is named for a role that does not exist."),
    Rule("B08", "The file of a role is a plain relative path inside the package."),
    Rule("B09", "The file of a role is there."),
    Rule("B10", "A file fills one role; only graphs of one model may share their weights."),
    Rule("B11", "The files of a graph are not empty."),
    Rule("B12", "Every file has a role (a licence, notice or readme beside them needs none).", "warning"),
    Rule("B13", "No two models have one name."),
    Rule("B14", "No two graphs of a model have one name."),
    Rule("B15", "No two tensors of a graph have one name."),
    Rule("B16", "A graph names a task once."),
    Rule("B17", "Every model has a graph that can prefill and one that can decode."),
    Rule("B18", "Profiles rise and end with the number of lanes."),
    Rule("B19", "Every profile has a decode graph: of that fixed batch, or of any batch up to one as large."),
    Rule("B20", "No decode graph has a fixed batch that is no profile, and no prefill graph one beyond the lanes."),
    Rule("B21", "No two graphs do one task for one profile (for prefill: one batch and row length)."),
    Rule("B22", "A setting's value is no path."),
    Rule("B23", "A graph that this packer compiled is an XML file whose root is `net`, without a document type."),
    Rule("C01", "A tensor's bytes are its shape times the size of its dtype."),
    Rule("C02", "A graph has exactly the inputs of its KV layout, by their names."),
    Rule("C03", "A graph has exactly one output, `logits`."),
    Rule("C04", "CSR names are none, or two different ones (current length, total length)."),
    Rule("C05", "Logits are float32 or bfloat16, and their shape holds the vocabulary in the tiles declared."),
    Rule("C06", "Lane tensors have a row per lane, and rows that are free have a tensor for their KV lanes."),
    Rule("C07", "A graph of several lanes declares what an inactive one must hold, and has the tensor for it."),
    Rule("C08", "CSRs or tensors say how long each row is."),
    Rule("C09", "A graph addresses the whole context."),
    Rule("C10", "The context is at least 2 tokens and no longer than the model was trained for."),
    Rule("C11", "Limits of a graph agree: chunk <= row <= sequence, row <= job <= rows of one job together."),
    Rule("C12", "Paged tensors have room for the graph's rows, tokens, blocks and logits."),
    Rule("C13", "Inputs hold integers."),
    Rule("C14", "Every lane is reached by a prefill and by a decode graph."),
    Rule("C15", "A graph that always runs all of several rows does not omit an inactive one."),
    Rule("D01", "`memory.json` has one entry for each model."),
    Rule("D02", "The weights take what the manifest says they take."),
    Rule("D03", "A KV unit takes 2 x layers x KV heads x head size x tokens x element bytes."),
    Rule("D04", "The KV pool takes its units times the bytes of one."),
    Rule("D05", "The KV pool holds a sequence of the whole context, and on a lane board every lane does."),
    Rule("D06", "The KV pool holds the whole context for every lane.", "warning"),
    Rule("D07", "I/O takes what inputs and outputs of the largest job take."),
    Rule("D08", "A plan that the board makes names no chips or sections; any other names them."),
    Rule("D09", "A plan is laid by whoever compiles for the target: this packer, or the vendor's compiler."),
    Rule("D10", "No two sections have one name."),
    Rule("D11", "A section belongs to a model of the package."),
    Rule("D12", "A section lies on chips of its model only."),
    Rule("D13", "A graph runs on chips of its model only."),
    Rule("D14", "A model has weights, KV and I/O on each of its chips."),
    Rule("D15", "No two sections overlap on a chip; only workspaces of one model may."),
    Rule("D16", "A section is not empty."),
    Rule("D17", "KV, workspace and I/O are writable, and nothing else is."),
    Rule("D18", "Sections are as large as the figures they are for."),
    Rule("D19", "Each chip that sections lie on has one reservation, and no other chip has."),
    Rule("D20", "A reservation reaches to the end of the chip's last section."),
    Rule("D21", "A plan for a board's own memory leaves at least 1 GiB free on each chip as a guard.", "warning"),
    Rule("D22", "Models of one package share no chip, and so no state that either writes."),
    Rule("D23", "Models of one package are pinned to their chips."),
    Rule("D24", "Weight files hold as many bytes as the manifest says, where this packer compiled them."),
    Rule("D25", "Scratch units are different ones, and none is of the KV pool."),
    Rule("D26", "A model's KV is one section on a chip."),
    Rule("D27", "A model that has a workspace section says what its workspace takes."),
    Rule("D28", "A graph addresses no more tokens than a lane holds, or on a paged board the whole pool."),
    Rule("E01", "The tokenizer has the sha256 that the manifest says."),
    Rule("E02", "The chat template has the sha256 that the manifest says."),
    Rule("E03", "The tokenizer is at most 64 MiB, its patterns and added tokens are within bounds."),
    Rule("E04", "The tokenizer loads."),
    Rule("E05", "Every token has an id below the width of the logits."),
    Rule("E06", "Every token that ends a text is one the tokenizer has."),
    Rule("E07", "The chat template is UTF-8 of bounded length and compiles in the sandbox."),
    Rule("E08", "Goldens were computed with the model's numerics."),
    Rule("E09", "A golden has one margin for each output token, none of them negative."),
    Rule("E10", "A golden's ids are below the width of the logits."),
    Rule("E11", "A golden fits the context."),
    Rule("E12", "The tokenizer's patterns repeat no part that itself repeats or chooses, nor backtrack further."),
    Rule("E13", "The tokenizer makes at most 32 characters of one, adds at most 64 ids, has no token of over 4096."),
    Rule("E14", "The goldens' tolerance is at most 0.25 logits with exact numerics and 2 with fast ones."),
    Rule("E15", "With exact numerics a golden's step leads by more than the tolerance, so that goldens can fail."),
    Rule("E16", "With fast numerics a golden's step leads by more than the tolerance.", "warning"),
    Rule("F01", "`compatibility.json` is for the manifest's target."),
    Rule("F02", "The runtime is one library, the target's, with a range of versions."),
    Rule("F03", "The runtime installed here is in the range."),
    Rule("F04", "The target's runtime is installed here, so that its version can be compared.", "warning"),
    Rule("F05", "Required capabilities are ones there are, each named once."),
    Rule("F06", "Devices are named, each once."),
    Rule("F07", "The board has the chips that the package needs.", needs_board=True),
    Rule("F08", "A chip of the board holds its reservation and guard.", needs_board=True),
    Rule("F09", "The board's device is one that the package may run on.", needs_board=True),
    Rule("F10", "Required capabilities are proven (C0) on the board.", needs_board=True),
    Rule("F11", "The board configures each model.", needs_board=True),
    Rule("F12", "Goldens and warm-up of each model pass on the board, also in a batch with unused lanes.",
         needs_board=True),
    Rule("F13", "The board profile that the package names is one that ships with this release.", needs_board=True),
)  # fmt: skip

RULES: Final[Mapping[str, Rule]] = MappingProxyType({rule.id: rule for rule in _RULES})
assert len(RULES) == len(_RULES), "a rule id stands twice"

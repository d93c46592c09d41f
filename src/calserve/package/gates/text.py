"""Gate E: the text side of each model, and its goldens.

Owns what a tokenizer or template may cost before a library sees it. Must not know chats. Both are parsed by libraries
that were not written for hostile input, so sizes, patterns and ids are bounded first, and whatever they raise is a
finding.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from calserve.package.gates.backtracking import backtracking_complaint
from calserve.package.gates.finding import Findings, Place
from calserve.package.gates.patterns import pattern_complaint, size_complaint
from calserve.package.gates.schema import read_part
from calserve.package.gates.work import Work
from calserve.package.manifest import GoldenEntry, Goldens, ModelEntry

TOKENIZER_BYTES_MAX = 64 << 20  # the largest vocabularies published, 262,144 tokens, take 33 MB
TEMPLATE_BYTES_MAX = 1 << 20  # the template's own limit is in characters
ADDED_TOKENS_MAX = 65_536
ADDED_CHARS_MAX = 1 << 20
# In logits. What this packer writes is 0.05 and 0.5: room for another processor's rounding, and none for another model.
TOLERANCE_MAX: Final[Mapping[str, float]] = MappingProxyType({"exact": 0.25, "fast": 2.0})
_PIPELINE = ("normalizer", "pre_tokenizer", "decoder", "post_processor", "model")


def check_text(work: Work, findings: Findings) -> None:
    tree = work.checked_tree()
    for model in tree.manifest.models:
        data = _hashed(work, model, "tokenizer", findings)
        if data is not None:
            _check_tokenizer(model, data, findings)
        data = _hashed(work, model, "chat_template", findings)
        if data is not None:
            _check_template(model, data, findings)
        _check_goldens(model, tree.goldens[model.name], findings)


def _hashed(work: Work, model: ModelEntry, role: str, findings: Findings) -> bytes | None:
    """Bytes of the file, if they are the ones that the manifest names."""
    name = model.files[role]
    is_tokenizer = role == "tokenizer"
    limit, rule = (TOKENIZER_BYTES_MAX, "E03") if is_tokenizer else (TEMPLATE_BYTES_MAX, "E07")
    data = read_part(work, name, limit, findings, (rule, "A02"))
    if data is None:
        return None
    wanted = model.tokenizer_sha256 if is_tokenizer else model.chat_template_sha256
    digest = hashlib.sha256(data).hexdigest()
    if digest != wanted:
        sentence = f"{name} is not the {role.replace('_', ' ')} of model {model.name} that the manifest names."
        findings.add("E01" if is_tokenizer else "E02", sentence, Place(file=name, model=model.name), wanted, digest)
        return None
    return data


def _check_tokenizer(model: ModelEntry, data: bytes, findings: Findings) -> None:
    name = model.files["tokenizer"]
    at = Place(file=name, model=model.name)
    rule, wrong = _cost_complaint(data)
    if wrong:
        findings.add(rule, f"{name}: {wrong}.", at)
        return
    try:
        ids = _token_ids(data.decode("utf-8"))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # its parser raises bare Exception, and panics past that
        findings.add("E04", f"{name} is no tokenizer: {_first_line(error)}.", at)
        return
    highest = max(ids, default=-1)
    if highest >= model.vocab_size:
        findings.add(
            "E05", f"{name} has a token {highest}, and logits of model {model.name} are {model.vocab_size} wide.", at,
            model.vocab_size, highest,
        )  # fmt: skip
    for token in model.eos_token_ids:
        if token not in ids or token >= model.vocab_size:
            findings.add(
                "E06", f"{name} has no token {token}, which is to end a text of {model.name}.", at, given=token
            )


def _token_ids(text: str) -> set[int]:
    from tokenizers import Tokenizer

    return set(Tokenizer.from_str(text).get_vocab(with_added_tokens=True).values())


def _cost_complaint(data: bytes) -> tuple[str, str]:
    """The rule, and what in the file would make its library work or hold without bound; empty when nothing does."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return "", ""  # not JSON at all: its own parser says so, and cheaply
    if not isinstance(tree, dict):
        return "", ""
    if wrong := _bounds_complaint(tree):
        return "E03", wrong
    if wrong := _pattern_complaint(tree, backtracking_complaint):
        return "E12", wrong
    return "E13", _growth_complaint(tree)


def _growth_complaint(tree: dict[str, Any]) -> str:
    from calserve.text.growth import growth_complaint

    wrong = growth_complaint(tree)
    return f"it {wrong}" if wrong else ""


def _bounds_complaint(tree: dict[str, Any]) -> str:
    added = tree.get("added_tokens")
    if isinstance(added, list):
        if len(added) > ADDED_TOKENS_MAX:
            return f"it adds {len(added)} tokens, more than {ADDED_TOKENS_MAX}"
        chars = sum(len(str(token.get("content", ""))) for token in added if isinstance(token, dict))
        if chars > ADDED_CHARS_MAX:
            return f"its added tokens have {chars} characters, more than {ADDED_CHARS_MAX}"
    return _pattern_complaint(tree, size_complaint)


def _pattern_complaint(tree: dict[str, Any], judge: Callable[[str], str]) -> str:
    for part in _PIPELINE:
        wrong = pattern_complaint(tree.get(part), judge, skip=("vocab", "merges"))
        if wrong:
            return f"a pattern in its {part} {wrong}"
    return ""


def _check_template(model: ModelEntry, data: bytes, findings: Findings) -> None:
    name = model.files["chat_template"]
    at = Place(file=name, model=model.name)
    try:
        _compile(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        findings.add("E07", f"{name} is not UTF-8 at byte {error.start}.", at)
    except (Exception, MemoryError) as error:  # Jinja's own parser lets through what int() and compile() raise
        findings.add("E07", f"{name} cannot be used: {_first_line(error)}.", at)


def _compile(source: str) -> Any:
    from calserve.text.template import BoundedTemplate

    return BoundedTemplate(source, datetime.now)


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__


def _check_goldens(model: ModelEntry, goldens: Goldens, findings: Findings) -> None:
    name = model.files["goldens"]
    at = Place(file=name, model=model.name)
    if goldens.numerics != model.numerics:
        findings.add(
            "E08", f"{name} was computed with numerics {goldens.numerics}, and model {model.name} has "
            f"{model.numerics}.", at, model.numerics, goldens.numerics,
        )  # fmt: skip
    most = TOLERANCE_MAX[goldens.numerics]
    if goldens.tolerance > most:
        findings.add(
            "E14", f"{name}: a tolerance of {goldens.tolerance} logits is more than {most}, which proves nothing.", at,
            most, goldens.tolerance,
        )  # fmt: skip
    elif not any(margin > goldens.tolerance for golden in goldens.goldens for margin in golden.margins):
        findings.add(
            "E15" if goldens.numerics == "exact" else "E16",
            f"{name}: no step leads by more than the tolerance of {goldens.tolerance} logits, so that any token would "
            "pass.", at, goldens.tolerance,
        )  # fmt: skip
    for number, golden in enumerate(goldens.goldens):
        _check_golden(model, golden, f"{name}, golden {number}", at, findings)


def _check_golden(model: ModelEntry, golden: GoldenEntry, where: str, at: Place, findings: Findings) -> None:
    if len(golden.margins) != len(golden.output_ids):
        findings.add(
            "E09", f"{where}: {len(golden.margins)} margins for {len(golden.output_ids)} tokens.", at,
            len(golden.output_ids), len(golden.margins),
        )  # fmt: skip
    elif min(golden.margins) < 0:
        findings.add("E09", f"{where}: a margin of {min(golden.margins)} is below 0.", at, 0, min(golden.margins))
    worst = max(*golden.prompt_ids, *golden.output_ids)
    if worst >= model.vocab_size:
        findings.add(
            "E10", f"{where}: token id {worst} is not below the width of the logits, {model.vocab_size}.", at,
            model.vocab_size, worst,
        )  # fmt: skip
    length = len(golden.prompt_ids) + len(golden.output_ids)
    if length > model.context:
        findings.add(
            "E11", f"{where}: {length} tokens are more than the context {model.context}.", at, model.context, length
        )

"""Prompts to token ids, with everything about them that needs the model.

Owns the early refusals: too many bytes to fit, ids the model does not have, a chat for a model without a template.
Must not know HTTP or scheduling. The heavy part runs on the tokenizing pool.
"""

from __future__ import annotations

from collections.abc import Iterable

from calserve.core.outcomes import Refusal, RefusalKind
from calserve.service.catalogue import PackageFacts, ServedModel
from calserve.service.generation import Ask, Refused
from calserve.service.tokenizing import TokenizingPool
from calserve.text import ChatError, InvalidText

# No vocabulary's tokens hold more characters than this on average over a whole prompt: runs of 128 spaces are the
# longest that common byte-level vocabularies have.
CHARACTERS_PER_TOKEN_MAX = 128


async def wait_token_ids(pool: TokenizingPool, model: ServedModel[PackageFacts], ask: Ask) -> list[list[int]] | Refused:
    """The ids of every prompt of `ask`, none empty; or why not."""
    refused = _early_refusal(model, ask)
    if refused is not None:
        return refused
    ids = [list(prompt) for prompt in ask.prompts if not isinstance(prompt, str)]
    if not ids:
        if pool.is_full:
            return Refused(Refusal(RefusalKind.QUEUE_FULL, pool.max_waiting, pool.max_waiting + 1))
        tokenized = await pool.run(lambda: _tokenize(model, ask))
        if isinstance(tokenized, Refused):
            return tokenized
        ids = tokenized
    if not all(ids):
        return _invalid("messages" if ask.messages else "prompt", "The prompt has no tokens.")
    return ids


def _early_refusal(model: ServedModel[PackageFacts], ask: Ask) -> Refused | None:
    width = model.package.vocab_size
    for prompt in ask.prompts:
        if isinstance(prompt, str):
            continue
        for token in (min(prompt), max(prompt)) if prompt else ():
            if not 0 <= token < width:
                return _invalid("prompt", f"prompt has the token id {token}; ids go from 0 to {width - 1}.")
    for field, ids in (("logit_bias", ask.sampling.logit_bias or ()), ("stop_token_ids", ask.stop_token_ids)):
        for token in ids:
            if not 0 <= token < width:
                return _invalid(field, f"{field} has the token id {token}; ids go from 0 to {width - 1}.")
    if ask.messages and model.template is None:
        return _invalid("messages", "This model has no chat template; use /v1/completions.")
    characters = max(_sizes(ask), default=0)
    most = model.package.context * CHARACTERS_PER_TOKEN_MAX
    if characters > most:
        return Refused(
            Refusal(RefusalKind.TOO_LONG, most, characters),
            f"The prompt has {characters} characters; no prompt of more than {most} can fit the model's context.",
            "messages" if ask.messages else "prompt",
        )
    return None


def _sizes(ask: Ask) -> Iterable[int]:
    for prompt in ask.prompts:
        if isinstance(prompt, str):
            yield len(prompt)
    yield sum(len(message["content"]) for message in ask.messages)


def _tokenize(model: ServedModel[PackageFacts], ask: Ask) -> list[list[int]] | Refused:
    """On a thread of the pool."""
    try:
        if ask.messages:
            assert model.template is not None, "checked before"
            return [model.template.render_ids(ask.messages, model.tokenizer)]
        texts = [prompt for prompt in ask.prompts if isinstance(prompt, str)]
        return model.tokenizer.encode_many(texts, add_special=True)
    except InvalidText as error:
        return _invalid("messages" if ask.messages else "prompt", str(error))
    except ChatError as error:
        return _invalid("messages", str(error))


def _invalid(field: str, message: str) -> Refused:
    return Refused(Refusal(RefusalKind.INVALID), message, field)

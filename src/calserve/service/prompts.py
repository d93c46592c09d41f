"""Prompts to token ids, with everything about them that needs the model.

Owns the early refusals: too many bytes to fit, ids the model does not have, a chat for a model without a template.
Must not know HTTP, scheduling, or on which thread it runs: `early_refusal` is quick, `token_ids` is not.
"""

from __future__ import annotations

from collections.abc import Iterable

from calserve.core.outcomes import Refusal, RefusalKind
from calserve.service.catalogue import PackageFacts, ServedModel
from calserve.service.generation import Ask, Refused
from calserve.text import ChatError, InvalidText

# No vocabulary's tokens hold more characters than this on average over a whole prompt: runs of 128 spaces are the
# longest that common byte-level vocabularies have.
CHARACTERS_PER_TOKEN_MAX = 128


# A whole answer is built in one piece, on the loop: entries of log-probabilities it may have, some 80 bytes each.
MAX_WHOLE_LOGPROBS = 65_536


def token_ids(model: ServedModel[PackageFacts], ask: Ask) -> list[list[int]] | Refused:
    """The ids of every prompt of `ask`, none empty; or why not. Its time grows with the prompts."""
    ids = [list(prompt) for prompt in ask.prompts if not isinstance(prompt, str)]
    if not ids:
        tokenized = _tokenize(model, ask)
        if isinstance(tokenized, Refused):
            return tokenized
        ids = tokenized
    if not all(ids):
        return _invalid("messages" if ask.messages else "prompt", "The prompt has no tokens.")
    return ids


def early_refusal(model: ServedModel[PackageFacts], ask: Ask) -> Refused | None:
    """What is wrong with `ask` and can be seen without tokenizing."""
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
    return _too_long(model.package.context, ask) or _too_large_whole(model.package.context, ask)


def _too_long(context: int, ask: Ask) -> Refused | None:
    characters, field = max(_sizes(ask), default=0), "messages" if ask.messages else "prompt"
    most = context * CHARACTERS_PER_TOKEN_MAX
    if characters > most:
        return Refused(
            Refusal(RefusalKind.TOO_LONG, most, characters),
            f"The prompt has {characters} characters; no prompt of more than {most} can fit the model's context.",
            field,
        )
    # A message takes a token at the least, and its characters what they take.
    tokens = len(ask.messages) + characters // CHARACTERS_PER_TOKEN_MAX
    if tokens > context:
        return Refused(
            Refusal(RefusalKind.TOO_LONG, context, tokens),
            f"{len(ask.messages)} messages of {characters} characters take at least {tokens} tokens; "
            f"the model takes at most {context}.",
            field,
        )
    return None


def _too_large_whole(context: int, ask: Ask) -> Refused | None:
    if ask.is_streaming or ask.sampling.logprobs is None:
        return None
    choices = ask.n * max(len(ask.prompts), 1)
    entries = choices * min(ask.max_new_tokens or context, context) * (1 + ask.sampling.logprobs)
    if entries <= MAX_WHOLE_LOGPROBS:
        return None
    field = "top_logprobs" if ask.messages and ask.sampling.logprobs else "logprobs"
    return _invalid(
        field,
        f"{field}: {choices} choices of so many tokens would have up to {entries} log-probabilities; an answer that is "
        f"not streamed may have {MAX_WHOLE_LOGPROBS}.",
    )


def _sizes(ask: Ask) -> Iterable[int]:
    for prompt in ask.prompts:
        if isinstance(prompt, str):
            yield len(prompt)
    yield sum(len(message["content"]) for message in ask.messages)


def _tokenize(model: ServedModel[PackageFacts], ask: Ask) -> list[list[int]] | Refused:
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

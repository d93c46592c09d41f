"""Choosing the next token from a row of logits.

Owns: sampling parameters and their validation, the counter-based generator, the filters (top-k, min-p,
nucleus), penalties, logit bias and log-probabilities. Grammar masks will live here too.

Must not know: requests, lanes, jobs, boards, text, HTTP, clocks. It keeps no global state: what a row gives
depends on that row's logits, parameters, seed and output index, and on nothing else.
"""

from calserve.sampling.params import InvalidParameter, SamplingParams, parse_sampling
from calserve.sampling.sampler import Choice, Sampler, choose_rows

__all__ = ["Choice", "InvalidParameter", "Sampler", "SamplingParams", "choose_rows", "parse_sampling"]

"""The oracle against numbers worked out with an arbitrary-precision calculator, and the board against the oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sim_rig import LANES, SMALL, Rig, prompt_of, row_of

from calserve.runtime.contract import InactiveLanePolicy
from calserve.runtime.sim import PROFILES, sim_package
from calserve.runtime.sim.oracle import greedy_tokens, hash_token, hash_tokens, logits_row, model_key


def test_oracle_two_token_prompt_matches_the_worked_example() -> None:
    assert model_key("sim-model") == 0xF7F3F8F6FB5FF17B  # printf sim-model | sha256sum
    assert hash_token(0xF7F3F8F6FB5FF17B, 3, 0) == 5714919882381531725
    assert hash_tokens([3, 5]) == 15189891978615631482
    # a = 7, b = 6: the logit of v is (7 v + 6) mod 8, in eighths
    assert logits_row(15189891978615631482, 8) == [r / 8 for r in (6, 5, 4, 3, 2, 1, 0, 7)]
    assert greedy_tokens([3, 5], 8, 64) == [39, 17, 13, 31, 24, 5, 34, 28]


def test_oracle_stop_id_ends_the_output_with_it() -> None:
    assert greedy_tokens([3, 5], 8, 64, stop_ids=(13,)) == [39, 17, 13]


def test_oracle_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        greedy_tokens([], 1, 64)


def test_oracle_end_id_appears_about_once_in_vocab_tokens() -> None:
    output = greedy_tokens([2], 6400, 64)
    assert 60 < output.count(1) < 145  # mean 100, sd 10


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, 127, 128, 1024, 2040])
def test_board_prompt_of_each_length_gives_the_oracles_tokens(length: int) -> None:
    prompt = prompt_of(length)
    assert Rig.on(LANES).generate(prompt, 8) == greedy_tokens(prompt, 8, 64)


@pytest.mark.parametrize(("length", "new"), [(2047, 2), (2048, 1)])
def test_board_prompt_up_to_the_context_gives_the_oracles_tokens(length: int, new: int) -> None:
    prompt = prompt_of(length)
    assert Rig.on(LANES).generate(prompt, new) == greedy_tokens(prompt, new, 64)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("policy", [InactiveLanePolicy.VALID_MASK, InactiveLanePolicy.POSITION_MINUS_ONE])
@pytest.mark.parametrize("batch", [1, 4, 8, 16])
def test_board_every_profile_and_policy_gives_the_oracles_tokens(
    batch: int, policy: InactiveLanePolicy, dtype: str
) -> None:
    rig = Rig.on(replace(SMALL, inactive_lane_policy=policy, logits_dtype=dtype))
    prompts = {lane: prompt_of(3 + lane, lane) for lane in range(0, batch, 3)}
    outputs = {lane: [rig.prefill(lane, prompt)] for lane, prompt in prompts.items()}
    for step in range(10):
        wanted = {lane: (out[-1], len(prompts[lane]) + step) for lane, out in outputs.items()}
        for lane, token in rig.decode(batch, wanted).items():
            outputs[lane].append(token)
    for lane, prompt in prompts.items():
        assert outputs[lane] == greedy_tokens(prompt, 11, 64)


def test_board_calculet_profile_gives_the_oracles_tokens() -> None:
    prompt = prompt_of(33)
    rig = Rig.on(PROFILES["calculet-2chip"])
    assert rig.generate(prompt, 6, batch=1) == greedy_tokens(prompt, 6, 64)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("tile", "shape"), [(16, (4, 4, 16)), (24, (3, 4, 24)), (64, (1, 4, 64)), (100, (1, 4, 100))])
def test_board_tiled_logits_stand_where_the_contract_says_and_padding_is_nan(
    tile: int, shape: tuple[int, ...], dtype: str
) -> None:
    rig = Rig.on(replace(SMALL, logits_tile=tile, logits_dtype=dtype))
    prompt = prompt_of(7)
    first = rig.prefill(2, prompt)
    assert first == greedy_tokens(prompt, 1, 64)[0]
    spec = rig.spec("decode_b4", [row_of(2, 7, 1)])
    ticket, buffers = rig.start(spec, [[first]])
    rig.finish(ticket)
    logits = buffers.output("logits")
    assert logits.shape == shape == rig.session.graphs["decode_b4"].outputs["logits"].shape
    if dtype == "bfloat16":
        logits = (logits.astype(np.uint32) << 16).view(np.float32)
    flat = [float(logits[v // tile, 2, v % tile]) for v in range(shape[0] * tile)]
    assert flat[:64] == logits_row(hash_tokens([*prompt, first]), 64)
    assert np.isnan(flat[64:]).all()


def test_calculet_graphs_have_the_seeds_tile_in_their_metadata() -> None:
    graphs = sim_package(PROFILES["calculet-2chip"]).graphs
    assert {graph.name: (graph.logits_tile, graph.outputs["logits"].shape) for graph in graphs} == {
        "prefill_b1": (16, (4, 1, 16)),
        "decode_b1": (16, (4, 1, 16)),
    }


def test_board_prompt_in_chunks_gives_the_same_token_as_whole() -> None:
    prompt = prompt_of(50)
    rig = Rig.on()
    for first, last in ((0, 1), (1, 17), (17, 49)):
        rig.prefill(3, prompt[first:last], first)
    assert rig.prefill(3, prompt[49:], 49) == greedy_tokens(prompt, 1, 64)[0]


def test_board_logits_row_is_whole_and_equals_the_oracles_row() -> None:
    rig = Rig.on()
    prompt = prompt_of(7)
    spec = rig.spec("prefill_b1", [row_of(0, 0, 7)])
    ticket, buffers = rig.start(spec, [prompt])
    rig.finish(ticket)
    assert buffers.output("logits").tolist() == [logits_row(hash_tokens(prompt), 64)]


def test_board_bfloat16_logits_are_the_exact_upper_halves_of_float32() -> None:
    rig = Rig.on(replace(SMALL, logits_dtype="bfloat16", vocab=256))
    prompt = prompt_of(7)
    ticket, buffers = rig.start(rig.spec("prefill_b1", [row_of(0, 0, 7)]), [prompt])
    rig.finish(ticket)
    bits = buffers.output("logits")
    assert bits.dtype == np.uint16
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    assert values.tolist() == [logits_row(hash_tokens(prompt), 256)]


def test_package_goldens_are_the_oracles_and_hash_tells_models_and_profiles_apart() -> None:
    package = sim_package(SMALL)
    assert [len(golden.prompt_ids) for golden in package.goldens] == [1, 16, 33]
    for golden in package.goldens:
        assert list(golden.output_ids) == greedy_tokens(golden.prompt_ids, 16, 64)
        assert set(golden.margins) == {0.125}
    assert package.hash == sim_package(SMALL).hash
    others = {sim_package(SMALL, "other").hash, sim_package(LANES).hash}
    assert len(others | {package.hash}) == 3


def test_models_with_different_names_give_different_tokens() -> None:
    assert greedy_tokens([3, 5], 8, 64, "a") != greedy_tokens([3, 5], 8, 64, "b")

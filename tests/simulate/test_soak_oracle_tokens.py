"""The oracle's tokens against the plain form of the model, and its draw against the sampler's."""

import numpy as np
import pytest
from soak_oracle_rig import History, ask, greedy, text

from calserve.runtime.sim.oracle import greedy_tokens, hash_tokens, logits_row, model_key
from calserve.sampling.params import SamplingParams
from calserve.sampling.sampler import Sampler
from calserve.sampling.uniform import uniform
from calserve.simulate.oracle.tokens import TokenFormula, carry, carry_all, start_of, uniform_of


@pytest.mark.parametrize("vocab", [8, 64, 256])
def test_best_token_carried_along_equals_the_plain_formula(vocab: int) -> None:
    formula = TokenFormula(vocab)
    rng = np.random.default_rng(vocab)
    for _ in range(20):
        prompt = rng.integers(0, vocab, int(rng.integers(1, 40))).tolist()
        h = carry_all(start_of("m"), prompt)
        assert h == hash_tokens(prompt, "m")
        output = []
        for _ in range(12):
            best = formula.best(h)
            assert best is not None
            h = carry(h, best, len(prompt) + len(output))
            output.append(best)
        assert output == greedy_tokens(prompt, 12, vocab, "m")
    assert start_of("m") == model_key("m")


def test_best_token_with_some_barred_is_the_largest_logit_left() -> None:
    formula, rng = TokenFormula(64), np.random.default_rng(5)
    for _ in range(300):
        h = int(rng.integers(0, 2**63)) * 2 + 1
        row = np.array(logits_row(h, 64))
        barred = frozenset(np.argsort(-row)[: int(rng.integers(0, 64))].tolist())
        row[list(barred)] = -np.inf
        assert formula.best(h, barred) == int(row.argmax())
    assert formula.best(1, frozenset(range(64))) is None


def test_uniform_number_equals_the_samplers() -> None:
    for seed in (0, 1, 2**32 - 1, 2**63, 2**64 - 1):
        assert [uniform_of(seed, i) for i in range(50)] == [uniform(seed, i) for i in range(50)]


@pytest.mark.parametrize("temperature", [0.05, 0.2, 0.733, 1.0, 1.9])
def test_drawn_token_equals_the_samplers(temperature: float) -> None:
    formula, rng = TokenFormula(64), np.random.default_rng(int(temperature * 1000))
    for seed in range(400):
        h = int(rng.integers(0, 2**63)) * 2
        row = np.array(logits_row(h, 64), np.float32)
        barred = tuple(rng.choice(64, int(rng.integers(0, 4)), replace=False).tolist())
        sampler = Sampler(SamplingParams(temperature=temperature, seed=seed), 64, suppressed=barred)
        drawn = formula.drawn(h, temperature, uniform_of(seed, seed % 7), frozenset(barred))
        assert drawn == sampler.choose(row, seed % 7).token


def test_vocabulary_that_is_no_power_of_two_is_refused() -> None:
    with pytest.raises(ValueError, match="power of two, not 60"):
        TokenFormula(60)


# --- what a stream receives ---------------------------------------------------------------------------------


def test_right_answer_from_submit_to_end_finds_nothing() -> None:
    history = History()
    history.submit(ask())
    history.at(20).whole("r1", 0)
    history.oracle.check(history.now)
    history.oracle.finish(history.now)
    assert history.found == [], history.say()
    assert history.oracle.ends == {"length": 1}


def test_wrong_token_is_found_with_the_right_one_named() -> None:
    history = History()
    request = history.submit(ask())
    history.at(20).run(history.row("r1", 0))
    right = greedy(request, 1)[0]
    history.tell("r1", (right + 1) % 64)
    assert history.found == ["I10"]
    assert f"as output 0, where {right} is right" in history.say()


def test_token_of_another_request_is_found() -> None:
    history = History()
    history.submit(ask())
    other = history.submit(ask("r2", prompt=(9, 9)))
    history.at(20).run(history.row("r1", 0))
    history.tell("r1", greedy(other, 1)[0])
    assert history.found == ["I10"]


def test_second_token_from_one_job_is_found() -> None:
    """Sampled twice, or committed before `wait`: no job the host knows of gave this one."""
    history = History()
    request = history.submit(ask())
    history.at(20).run(history.row("r1", 0))
    history.tell("r1", *greedy(request, 2))
    assert history.found == ["I10"]
    assert "the host was told of 1 sound jobs" in history.say()


def test_token_before_its_job_was_delivered_is_found() -> None:
    history = History()
    request = history.submit(ask())
    ticket = history.at(20).put(history.row("r1", 0))
    history.read(ticket)
    history.retire(ticket)
    history.tell("r1", greedy(request, 1)[0])
    assert history.found == ["I10"]


def test_token_of_a_job_with_an_exception_is_found() -> None:
    """Code 0 with DONE_CCU_EXCEPTION: trusting the code alone delivers what nobody computed."""
    history = History()
    request = history.submit(ask())
    ticket = history.at(20).put(history.row("r1", 0))
    history.read(ticket)
    history.retire(ticket, detail="done_ccu_exception")
    history.deliver(ticket)
    history.tell("r1", greedy(request, 1)[0])
    assert history.found == ["I10"]


def test_eos_below_the_least_number_of_tokens_is_barred() -> None:
    """A prompt whose first best token is taken as end-of-text: below min_tokens the second best is right."""
    prompt = (3, 4, 5)
    first = greedy_tokens(prompt, 1, 64, "sim-model")[0]
    row = logits_row(hash_tokens(prompt, "sim-model"), 64)
    second = sorted(range(64), key=lambda v: -row[v])[1]
    history = History()
    history.submit(ask(min_tokens=1, eos_ids=(first,), ignore_eos=True))
    history.at(20).run(history.row("r1", 0))
    history.tell("r1", second)
    assert history.found == []
    other = History()
    other.submit(ask(min_tokens=1, eos_ids=(first,), ignore_eos=True))
    other.at(20).run(other.row("r1", 0))
    other.tell("r1", first)
    assert other.found == ["I10"]


def test_stop_token_ends_the_answer_and_has_no_text() -> None:
    history = History()
    request = history.submit(ask())
    right = greedy(request, 3)
    stopping = ask("r2", stop_token_ids=(right[1],))
    history.submit(stopping)
    history.at(20).run(history.row("r2", 1))
    history.tell("r2", right[0])
    history.run(history.row("r2", 1, 3))
    history.tell("r2", right[1], words="")
    history.end("r2", "stop", 2)
    assert history.found == [], history.say()


def test_token_after_the_stop_is_found() -> None:
    history = History()
    right = greedy(ask(), 3)
    history.submit(ask(stop_token_ids=(right[0],)))
    history.at(20).run(history.row("r1", 0))
    history.tell("r1", right[0], words="")
    history.run(history.row("r1", 0, 3))
    history.tell("r1", right[1])
    assert history.found == ["I10"]
    assert "after a stop token" in history.say()


@pytest.mark.parametrize(
    ("reason", "told", "count"),
    [("stop", 3, 3), ("length", 2, 2), ("length", 3, 2)],
    ids=["stop without one", "length too early", "count that disagrees"],
)
def test_end_that_disagrees_with_the_tokens_is_found(reason: str, told: int, count: int) -> None:
    history = History()
    right = greedy(history.submit(ask()), 3)
    for index in range(told):
        history.at(20 + index).run(history.row("r1", 0, 0 if index == 0 else 2 + index))
        history.tell("r1", right[index])
    history.end("r1", reason, count)
    assert history.found == ["I10"]


def test_text_that_is_not_the_tokens_is_found() -> None:
    history = History()
    right = greedy(history.submit(ask()), 1)
    history.at(20).run(history.row("r1", 0))
    history.tell("r1", *right, words="\x7f")
    assert history.found == ["I10"]


def test_stop_string_over_two_tokens_is_held_back_and_ends_the_answer() -> None:
    right = greedy(ask(), 3)
    history = History()
    history.submit(ask(stop_strings=(text(right[1:3]),)))
    for index, words in enumerate((text(right[:1]), "", "")):
        history.at(20 + index).run(history.row("r1", 0, 0 if index == 0 else 2 + index))
        history.tell("r1", right[index], words=words)
    history.end("r1", "stop", 3)
    assert history.found == [], history.say()


def test_stop_string_that_leaked_is_found() -> None:
    right = greedy(ask(), 3)
    history = History()
    history.submit(ask(stop_strings=(text(right[1:3]),)))
    for index, words in enumerate((text(right[:1]), text(right[1:2]), "")):
        history.at(20 + index).run(history.row("r1", 0, 0 if index == 0 else 2 + index))
        history.tell("r1", right[index], words=words)
    history.end("r1", "stop", 3)
    assert history.found == ["I10"]


def test_sampled_answer_with_the_servers_own_seed_must_agree_with_what_the_board_reads() -> None:
    history = History()
    request = history.submit(ask(temperature=0.7))
    history.at(20).run(history.row("r1", 0))
    other = (greedy(request, 1)[0] + 1) % 64
    history.tell("r1", other)
    assert history.found == []
    ticket = history.put(history.row("r1", 0, 3))
    history.read(ticket)  # the greedy token, which is not the one the client has
    assert history.found == ["I4"]

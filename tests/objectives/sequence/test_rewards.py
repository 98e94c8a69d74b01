"""Rewards of token ids, and worker processes that compute them while the model runs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from rnnsearch.config.sequence import (
    BleuRewardOptions,
    ChrfRewardOptions,
    FunctionRewardOptions,
    TerRewardOptions,
)
from rnnsearch.errors import ConfigError, TrainingError
from rnnsearch.metrics.sentence_scores import chrf, import_function, inverse_ter
from rnnsearch.objectives.sequence.rewards import InverseTer, SentenceBleu, SentenceChrf, UserReward


def spaced(ids):
    return " ".join(map(str, ids))


def test_equal_pairs_are_scored_once():
    calls = []

    class Counting(SentenceBleu):
        def score(self, hypotheses, references):
            calls.append(len(hypotheses))
            return super().score(hypotheses, references)

    reward = Counting(BleuRewardOptions(), spaced)
    values = reward.start([[1, 2], [1, 2], [3]], [[1, 2], [1, 2], [1, 2]])()
    assert values.tolist() == [1.0, 1.0, 0.0]
    assert calls == [2]


def many_pairs(count: int = 100) -> tuple[list[list[int]], list[list[int]]]:
    return [[n, n + 1, 7 * n] for n in range(count)], [[n, n + 2, 7 * n] for n in range(count)]


@pytest.mark.parametrize(
    ("cls", "options", "function"),
    [(SentenceChrf, ChrfRewardOptions(), chrf), (InverseTer, TerRewardOptions(), inverse_ter)],
)
def test_processes_compute_the_scores_in_order(cls, options, function):
    hypotheses, references = many_pairs()
    reward = cls(options, spaced)
    first = reward.start(hypotheses, references)
    second = reward.start(hypotheses[:50], references[:50])  # before the first has ended
    expected = function([*map(spaced, hypotheses)], [*map(spaced, references)])
    np.testing.assert_array_equal(second(), expected[:50])
    np.testing.assert_array_equal(first(), expected)
    processes = reward._pool._processes
    assert len(processes) >= 2
    reward.close()
    assert all(process.poll() is not None for process in processes)
    reward.close()  # once more has no effect


def test_few_pairs_start_no_process():
    hypotheses, references = many_pairs(20)
    reward = SentenceChrf(ChrfRewardOptions(), spaced)
    assert len(reward.start(hypotheses, references)()) == 20
    assert reward._pool is None


@pytest.fixture
def metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "reward_metric.py").write_text(
        "import time\n"
        "def first(hypothesis, reference):\n    return float(hypothesis.split()[0]) / 2\n"
        "def fails(hypothesis, reference):\n    raise KeyError('x')\n"
        "def slow(hypothesis, reference):\n    time.sleep(60)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "reward_metric", raising=False)
    import_function.cache_clear()
    return "reward_metric"


@pytest.mark.parametrize("count", [3, 100])
def test_user_function_scores_in_this_process_or_in_others(metric, count):
    hypotheses, references = many_pairs(count)
    reward = UserReward(FunctionRewardOptions(function=f"{metric}:first"), spaced)
    assert reward.start(hypotheses, references)().tolist() == [n / 2 for n in range(count)]
    reward.close()


@pytest.mark.parametrize("count", [3, 100])
def test_error_of_a_user_function_names_the_option(metric, count):
    reward = UserReward(FunctionRewardOptions(function=f"{metric}:fails"), spaced)
    wait = reward.start(*many_pairs(count))
    with pytest.raises(TrainingError) as error:
        wait()
    reward.close()
    message = "objective.sequence.reward.function: reward_metric:fails failed with KeyError: 'x' ("
    assert str(error.value).startswith(message)
    assert re.search(r"reward_metric\.py:\d+\)$", str(error.value))


def test_missing_user_function_is_an_error_before_training():
    with pytest.raises(
        ConfigError, match=r"^objective\.sequence\.reward\.function: no_such_module:f must be importable"
    ):
        UserReward(FunctionRewardOptions(function="no_such_module:f"), spaced)


def test_close_ends_processes_that_are_computing(metric):
    reward = UserReward(FunctionRewardOptions(function=f"{metric}:slow"), spaced)
    reward.start(*many_pairs())
    wait_until(lambda: len(reward._pool._processes) >= 2)
    processes = reward._pool._processes
    started = time.monotonic()
    reward.close()
    assert time.monotonic() - started < 20
    assert all(process.poll() is not None for process in processes)


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_interrupt_leaves_no_process(metric, tmp_path):
    program = f"""
        from contextlib import closing
        from rnnsearch.config.sequence import FunctionRewardOptions
        from rnnsearch.objectives.sequence.rewards import UserReward

        reward = UserReward(FunctionRewardOptions(function="{metric}:slow"), str)
        with closing(reward):
            wait = reward.start([[n] for n in range(100)], [[n] for n in range(100)])
            while len(reward._pool._processes) < 2:
                pass
            print(*[process.pid for process in reward._pool._processes], flush=True)
            wait()
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    # A group of its own: Ctrl-C sends the signal to all processes of a group.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True) as main:
        workers = [int(pid) for pid in main.stdout.readline().split()]
        assert len(workers) >= 2
        time.sleep(0.5)
        os.killpg(main.pid, signal.SIGINT)
        assert main.wait(30) != 0
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))

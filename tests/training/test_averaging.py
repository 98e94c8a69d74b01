"""Checkpoint averaging."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rnnsearch.errors import ModelError
from rnnsearch.training.averaging import average
from rnnsearch.weights import save_weights


def test_the_mean_of_each_parameter(tmp_path: Path) -> None:
    paths = []
    for number in (1.0, 2.0, 6.0):
        paths.append(tmp_path / f"{number}.safetensors")
        save_weights(paths[-1], {"a": torch.full((2, 3), number), "b": torch.tensor([number, -number])})
    mean = average(paths)
    assert mean["a"].tolist() == [[3.0] * 3] * 2
    assert mean["b"].tolist() == [3.0, -3.0]
    assert mean["a"].dtype == torch.float32


def test_sums_do_not_lose_small_parts(tmp_path: Path) -> None:
    paths = []
    for number, value in enumerate([2.0**25, 1.0, 1.0, -(2.0**25)]):
        paths.append(tmp_path / f"{number}.safetensors")
        save_weights(paths[-1], {"a": torch.tensor([value])})
    assert average(paths)["a"].tolist() == [0.5]


@pytest.mark.parametrize("other", [{"a": torch.zeros(3)}, {"b": torch.zeros(2)}, {}])
def test_another_models_weights_are_refused(tmp_path: Path, other: dict[str, torch.Tensor]) -> None:
    save_weights(tmp_path / "one.safetensors", {"a": torch.zeros(2)})
    save_weights(tmp_path / "two.safetensors", other)
    with pytest.raises(ModelError) as error:
        average([tmp_path / "one.safetensors", tmp_path / "two.safetensors"])
    assert str(error.value) == (
        f"{tmp_path / 'two.safetensors'}: its parameters are not those of {tmp_path / 'one.safetensors'}; "
        "only one model's can be averaged"
    )

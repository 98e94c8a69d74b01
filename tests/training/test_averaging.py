"""Checkpoint averaging."""

from pathlib import Path

import pytest
import torch

from rnnsearch.errors import ModelError
from rnnsearch.training.summary import average_weights
from rnnsearch.utils.weights import save_weights


def average(folder: Path, *states: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Save each of the weights to a file and return their average."""
    paths = [folder / f"{number}.safetensors" for number in range(len(states))]
    for path, tensors in zip(paths, states, strict=True):
        save_weights(path, tensors)
    return average_weights(paths)


def test_average_is_mean_of_each_parameter(tmp_path):
    states = ({"a": torch.full((2, 3), n), "b": torch.tensor([n, -n])} for n in (1.0, 2.0, 6.0))
    average_state = average(tmp_path, *states)
    assert average_state["a"].tolist() == [[3.0] * 3] * 2
    assert average_state["b"].tolist() == [3.0, -3.0]
    assert average_state["a"].dtype == torch.float32


def test_average_is_accumulated_in_fp64(tmp_path):
    states = ({"a": torch.tensor([value])} for value in (2.0**25, 1.0, 1.0, -(2.0**25)))
    assert average(tmp_path, *states)["a"].tolist() == [0.5]


@pytest.mark.parametrize("other", [{"a": torch.zeros(3)}, {"b": torch.zeros(2)}, {}])
def test_weights_of_another_model_are_rejected(tmp_path, other):
    with pytest.raises(ModelError) as error:
        average(tmp_path, {"a": torch.zeros(2)}, other)
    assert str(error.value) == (
        f"{tmp_path / '1.safetensors'}: its parameters are not those of {tmp_path / '0.safetensors'}; "
        "only one model's can be averaged"
    )

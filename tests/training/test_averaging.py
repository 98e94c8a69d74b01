"""Checkpoint averaging."""

from pathlib import Path

import pytest
import torch

from rnnsearch.errors import ModelError
from rnnsearch.training.summary import average_weights
from rnnsearch.utils.weights import save_weights


def mean(folder: Path, *kept: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The mean of these weights, each from a file of its own."""
    paths = [folder / f"{number}.safetensors" for number in range(len(kept))]
    for path, tensors in zip(paths, kept, strict=True):
        save_weights(path, tensors)
    return average_weights(paths)


def test_the_mean_of_each_parameter(tmp_path):
    kept = ({"a": torch.full((2, 3), n), "b": torch.tensor([n, -n])} for n in (1.0, 2.0, 6.0))
    found = mean(tmp_path, *kept)
    assert found["a"].tolist() == [[3.0] * 3] * 2
    assert found["b"].tolist() == [3.0, -3.0]
    assert found["a"].dtype == torch.float32


def test_sums_do_not_lose_small_parts(tmp_path):
    kept = ({"a": torch.tensor([value])} for value in (2.0**25, 1.0, 1.0, -(2.0**25)))
    assert mean(tmp_path, *kept)["a"].tolist() == [0.5]


@pytest.mark.parametrize("other", [{"a": torch.zeros(3)}, {"b": torch.zeros(2)}, {}])
def test_another_models_weights_are_refused(tmp_path, other):
    with pytest.raises(ModelError) as error:
        mean(tmp_path, {"a": torch.zeros(2)}, other)
    assert str(error.value) == (
        f"{tmp_path / '1.safetensors'}: its parameters are not those of {tmp_path / '0.safetensors'}; "
        "only one model's can be averaged"
    )

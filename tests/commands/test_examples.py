"""Every run file in examples/ is valid and trains at toy size."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rnnsearch import config as run_config
from rnnsearch.config import RunConfig
from rnnsearch.training.run import check

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))
TOY_SIZE = 8


def toy_sizes(table: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield settings that make every layer of a resolved `[model]` small."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from toy_sizes(value, f"{path}.{key}")
        elif isinstance(value, int) and not isinstance(value, bool):
            yield f"{path}.{key}={TOY_SIZE}"


def toy_settings(config: RunConfig, corpus: Path) -> list[str]:
    """Return the `--set` values of a toy run on the tiny corpus instead of the example's data."""
    data = config.data
    settings = [
        f'data.train=["{corpus / "train.en"}|{corpus / "train.de"}"]',
        f"text.vocabulary={min(config.text.vocabulary or 400, 400)}",
        "training.max_updates=2",
        "training.threads=1",
        "training.device=cpu",
        *toy_sizes(config.model.model_dump(exclude_none=True), "model"),
    ]
    for part, held_out in (("dev", data.dev), ("test", data.test)):
        files = f"data.{part}={corpus / part}.en|{corpus / part}.de"
        settings.append(f"data.{part}_size=10" if held_out is None else files)
    return settings


def test_examples_exist():
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_valid_and_trains_at_toy_size(cli, corpus, tmp_path, path):
    config = run_config.load(path)
    assert check(config) == []
    assert path.read_text(encoding="utf-8").startswith("# "), "the first line describes the example"
    copy = tmp_path / path.name
    copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    settings = [part for setting in [*toy_settings(config, corpus), "folder=out"] for part in ("--set", setting)]
    result = cli("train", copy, *settings)
    assert result.code == 0, result.err
    assert "training ended: 2 updates done" in result.err
    facts = json.loads((tmp_path / "out" / "training.json").read_text())
    assert facts["updates"] == 2
    assert facts["parameters"] < 100_000
    assert len(cli("translate", tmp_path / "out", stdin="the cat\n").lines) == 1

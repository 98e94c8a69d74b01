"""What an output layer is told of the training text before it is trained: the classes of its symbols."""

from __future__ import annotations

import torch

from rnnsearch.data.parallel import ParallelIds
from rnnsearch.data.word_classes import by_frequency, by_neighbours
from rnnsearch.models.class_outputs import HierarchicalOutput
from rnnsearch.models.outputs import OutputLayer


def arrange(output: OutputLayer, train: ParallelIds, target: str) -> None:
    """Count the classes of an output that has some; others are as they are."""
    if not isinstance(output, HierarchicalOutput):
        return
    if output.by == "neighbours":
        classes = by_neighbours(train, target, output.vocabulary, output.count)
    else:
        classes = by_frequency(train.counts(target, output.vocabulary), output.count)
    output.arrange(torch.from_numpy(classes))

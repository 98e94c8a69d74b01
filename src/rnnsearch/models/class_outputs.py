"""Outputs for large vocabularies that choose a class of symbols before the symbol."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rnnsearch.config import outputs
from rnnsearch.config.outputs import AdaptiveOptions, HierarchicalOptions, OutputConfig, SoftmaxOptions
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.models.layers import Embedding, parameter, set_role
from rnnsearch.models.outputs import LogitsFunction, Losses, Output, PlainLoss
from rnnsearch.utils.tensors import at_least_fp32


@implements(HierarchicalOptions)
class HierarchicalOutput(PlainLoss):
    """p(y) = p(c(y)) p(y | c(y)), a softmax over classes and one over the symbols of the class (Goodman 2001).

    Which class a symbol is of is counted in the training text (`data/word_classes.py`) and given to `arrange`.
    Over some symbols both softmaxes are over these, and the classes that have any of them.
    """

    def __init__(self, options: HierarchicalOptions, readout: int, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary, self.by = vocabulary, options.by
        self.num_classes = min(options.classes or isqrt(vocabulary), vocabulary)
        """How many classes there may be."""
        self.weight = parameter("embedding", vocabulary, readout)
        self.bias = parameter("bias", vocabulary)
        self.class_weight = parameter("embedding", self.num_classes, readout)
        self.class_bias = parameter("bias", self.num_classes)
        self.register_buffer(
            "classes", torch.arange(vocabulary).mul(self.num_classes).div(vocabulary, rounding_mode="floor")
        )
        self.assign_classes(self.classes)

    classes: Tensor
    """[V], the class of each symbol: floats, as all that a model folder holds."""

    def assign_classes(self, classes: Int[Tensor, "V"]) -> None:
        """Say which class each symbol is of."""
        self.classes = classes.to(self.weight.device, torch.float32)

    def logits_function(self, rows: Int[Tensor, "C"] | None) -> LogitsFunction:
        of = self.classes.long() if rows is None else self.classes[rows].long()
        weight, bias = (self.weight, self.bias) if rows is None else (self.weight[rows], self.bias[rows])

        def logits(readout: Tensor) -> Tensor:
            scores = at_least_fp32(functional.linear(readout, weight, bias))
            among = of.expand_as(scores)
            most = scores.new_full((*scores.shape[:-1], self.num_classes), -torch.inf)
            most = most.scatter_reduce(-1, among, scores.detach(), "amax")
            apart = (scores - most.gather(-1, among)).exp()
            norm = apart.new_zeros(most.shape).scatter_add(-1, among, apart).gather(-1, among).log()
            return scores - most.gather(-1, among) - norm + self._class_log_probs(readout, of).gather(-1, among)

        return logits

    def losses(
        self,
        readout: Float[Tensor, "M R"],
        target: Int[Tensor, "M"],
        smoothing: float = 0.0,
        rows: Int[Tensor, "C"] | None = None,
    ) -> Losses:
        """Class by class, of the symbols of the targets' classes alone."""
        assert smoothing == 0.0 and rows is None, "the softmaxes are over classes"
        classes = self.classes.long()
        own = classes[target]
        here = torch.zeros(self.num_classes, dtype=torch.bool, device=own.device).index_fill(0, own, True)
        members = here[classes].nonzero()[:, 0]
        members = members[classes[members].argsort(stable=True)]
        widths = torch.bincount(classes[members], minlength=self.num_classes)
        place = torch.zeros_like(classes).index_copy(0, members, torch.arange(len(members), device=own.device))
        within = place[target] - (widths.cumsum(0) - widths)[own]
        by_class, sizes = own.argsort(stable=True), torch.bincount(own, minlength=self.num_classes)[here].tolist()
        spans, found = widths[here].tolist(), []
        weights, biases = self.weight.index_select(0, members), self.bias.index_select(0, members)
        parts = (readout[by_class].split(sizes), within[by_class].split(sizes), weights.split(spans))
        for t, y, weight, bias in zip(*parts, biases.split(spans), strict=True):
            scores = at_least_fp32(functional.linear(t, weight, bias))
            found.append(functional.cross_entropy(scores, y, reduction="none"))
        of_class = -self._class_log_probs(readout, classes).gather(1, own[:, None])[:, 0]
        nll = of_class.index_add(0, by_class, torch.cat(found)) if found else of_class
        return nll.sum(), nll.detach()

    def _class_log_probs(self, readout: Tensor, of: Tensor) -> Tensor:
        """Log-probabilities of the classes that symbols are of."""
        none = torch.ones(self.num_classes, dtype=torch.bool, device=of.device).index_fill(0, of, False)
        scores = at_least_fp32(functional.linear(readout, self.class_weight, self.class_bias))
        return torch.log_softmax(scores.masked_fill(none, -torch.inf), dim=-1)


@implements(AdaptiveOptions)
class AdaptiveOutput(PlainLoss):
    """The adaptive softmax of Grave et al. (2017), which is PyTorch's; over some symbols by its own parameters.

    Symbols are in order of frequency.
    """

    def __init__(self, options: AdaptiveOptions, readout: int, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.layer = nn.AdaptiveLogSoftmaxWithLoss(
            readout, vocabulary, options.cutoffs, div_value=options.factor, head_bias=True
        )
        for part in self.layer.modules():
            if isinstance(part, nn.Linear):
                set_role(part.weight, "embedding")
                if part.bias is not None:
                    set_role(part.bias, "bias")
        for group in self._groups():
            set_role(group[0].weight, "weight")

    def _groups(self) -> list[tuple[nn.Linear, nn.Linear]]:
        """Of each group, what reads the readout and W_o of its symbols."""
        return [(group[0], group[1]) for group in self.layer.tail]  # type: ignore[index]

    def logits_function(self, rows: Int[Tensor, "C"] | None) -> LogitsFunction:
        if rows is None:
            return lambda readout: self.layer.log_prob(readout.flatten(0, -2)).unflatten(0, readout.shape[:-1])
        first = self.layer.cutoffs[0]
        own, some = (rows < first).nonzero()[:, 0], []
        for number, (reads, words) in enumerate(self._groups()):
            low, high = self.layer.cutoffs[number : number + 2]
            at = ((rows >= low) & (rows < high)).nonzero()[:, 0]
            if len(at):
                some.append((number, at, reads, words.weight[rows[at] - low]))
        groups = torch.tensor([first + number for number, *_ in some], dtype=rows.dtype, device=rows.device)
        heads = torch.cat([rows[own], groups])
        weight, bias = self.layer.head.weight[heads], self.layer.head.bias[heads]

        def logits(readout: Tensor) -> Tensor:
            head = torch.log_softmax(at_least_fp32(functional.linear(readout, weight, bias)), dim=-1)
            found = head.new_empty((*head.shape[:-1], len(rows)))
            found[..., own] = head[..., : len(own)]
            for group, (_, at, reads, words) in zip(head[..., len(own) :].split(1, dim=-1), some, strict=False):
                among = torch.log_softmax(at_least_fp32(functional.linear(reads(readout), words)), dim=-1)
                found[..., at] = among + group
            return found

        return logits

    def losses(
        self,
        readout: Float[Tensor, "M R"],
        target: Int[Tensor, "M"],
        smoothing: float = 0.0,
        rows: Int[Tensor, "C"] | None = None,
    ) -> Losses:
        """Of the groups that the targets are of."""
        assert smoothing == 0.0 and rows is None, "the softmaxes are over groups"
        with torch.autocast(readout.device.type, enabled=False):  # the library's layer knows one type
            nll = -self.layer(at_least_fp32(readout), target).output
        return nll.sum(), nll.detach()


OUTPUTS: Implementations[Callable[..., PlainLoss]] = Implementations(outputs.OUTPUTS)
"""Beside the one softmax."""


def make_output(
    config: OutputConfig, readout: int, vocabulary: int, tied: Embedding | None, lexical: int = 0
) -> PlainLoss:
    """The output of a config: one softmax, which may share an embedding (see `Output`), or another."""
    if isinstance(config, SoftmaxOptions):
        return Output(readout, vocabulary, tied, lexical)
    return OUTPUTS[config.type](config, readout, vocabulary)

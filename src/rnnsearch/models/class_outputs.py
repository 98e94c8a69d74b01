"""Outputs for large vocabularies that predict a class of tokens before the token, and `make_output`.

`TranslationModel` and `LanguageModel` call `make_output`. `systems/translation.py` computes the classes
(`data/word_classes.py`) before training; they are buffers of the checkpoint. `export/onnx.py` exports these classes.
The base classes are in `outputs.py`.

Axes: M target tokens, R readout, V vocabulary, C score columns (V, or the selected tokens).
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rnnsearch.config import outputs
from rnnsearch.config.outputs import (
    AdaptiveOptions,
    HierarchicalOptions,
    OutputConfig,
    SoftmaxOutputOptions,
    TreeOptions,
)
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.models.layers import Embedding, parameter, set_role
from rnnsearch.models.outputs import LogitsFunction, Losses, Output, PlainLoss
from rnnsearch.utils.tensors import at_least_fp32


class TreeLevel(NamedTuple):
    """The nodes at one distance from the root of a tree."""

    parent: Int[Tensor, "L"]
    """Index of each node's parent in the level above."""
    inner: Int[Tensor, "L"]
    """Number of the parent among the inner nodes."""
    direction: Int[Tensor, "L"]
    """1 for the first child of the parent, -1 for the second."""


@implements(HierarchicalOptions)
class HierarchicalOutput(PlainLoss):
    """p(y) = p(c(y)) p(y | c(y)), a softmax over classes and one over the tokens of the class (Goodman 2001).

    The classes are counted in the training text (`data/word_classes.py`) and set by `assign_classes`. With `rows`, both
    softmaxes are restricted: to these tokens, and to the classes that have any of them.
    """

    classes: Tensor
    """[V], the class of each token, as floats like everything in a model folder."""

    def __init__(self, options: HierarchicalOptions, readout: int, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.by = options.by
        self.num_classes = min(options.classes or isqrt(vocabulary), vocabulary)  # some may be empty
        self.weight = parameter("embedding", vocabulary, readout)
        self.bias = parameter("bias", vocabulary)
        self.class_weight = parameter("embedding", self.num_classes, readout)
        self.class_bias = parameter("bias", self.num_classes)
        # Equal ranges of ids, until `assign_classes` sets the classes that were counted.
        classes = torch.arange(vocabulary).mul(self.num_classes).div(vocabulary, rounding_mode="floor")
        self.register_buffer("classes", classes)
        self.assign_classes(self.classes)

    def assign_classes(self, classes: Int[Tensor, "V"]) -> None:
        """Set the class of each token."""
        self.classes = classes.to(self.weight.device, torch.float32)

    def logits_function(self, rows: Int[Tensor, "C"] | None) -> LogitsFunction:
        classes = self.classes.long() if rows is None else self.classes[rows].long()  # [C]
        weight, bias = (self.weight, self.bias) if rows is None else (self.weight[rows], self.bias[rows])

        def logits(readout: Tensor) -> Tensor:
            scores = at_least_fp32(functional.linear(readout, weight, bias))  # [..., C]
            class_of = classes.expand_as(scores)
            # log_softmax within each class; the maximum of each class is subtracted for stability.
            # maximum: [..., number of classes], -inf for a class without a column; detached, because it cancels out.
            # exp, log_sum, log_p_class: [..., C].
            maximum = scores.new_full((*scores.shape[:-1], self.num_classes), -torch.inf)
            maximum = maximum.scatter_reduce(-1, class_of, scores.detach(), "amax")
            exp = (scores - maximum.gather(-1, class_of)).exp()
            log_sum = exp.new_zeros(maximum.shape).scatter_add(-1, class_of, exp).gather(-1, class_of).log()
            log_p_class = self._class_log_probs(readout, classes).gather(-1, class_of)
            return scores - maximum.gather(-1, class_of) - log_sum + log_p_class

        return logits

    def losses(
        self,
        readout: Float[Tensor, "M R"],
        target: Int[Tensor, "M"],
        smoothing: float = 0.0,
        rows: Int[Tensor, "C"] | None = None,
    ) -> Losses:
        """Return the losses class by class, reading only the rows of W_o in the targets' classes."""
        assert smoothing == 0.0 and rows is None, "the softmaxes are over classes"
        classes = self.classes.long()  # [V]
        target_class = classes[target]  # [M]
        device = target.device
        is_used = torch.zeros(self.num_classes, dtype=torch.bool, device=device).index_fill(0, target_class, True)

        # All tokens of the used classes, ordered by class, and the index of each target within its class.
        members = is_used[classes].nonzero()[:, 0]
        members = members[classes[members].argsort(stable=True)]
        class_sizes = torch.bincount(classes[members], minlength=self.num_classes)
        member_index = torch.zeros_like(classes).index_copy(0, members, torch.arange(len(members), device=device))
        class_start = class_sizes.cumsum(0) - class_sizes  # index in `members` of each class's first token
        index_in_class = member_index[target] - class_start[target_class]

        # One softmax per used class, over the targets that belong to it.
        by_class = target_class.argsort(stable=True)  # [M], targets grouped by class
        targets_per_class = torch.bincount(target_class, minlength=self.num_classes)[is_used].tolist()
        tokens_per_class = class_sizes[is_used].tolist()
        losses = []
        for t, y, weight, bias in zip(
            readout[by_class].split(targets_per_class),
            index_in_class[by_class].split(targets_per_class),
            self.weight.index_select(0, members).split(tokens_per_class),
            self.bias.index_select(0, members).split(tokens_per_class),
            strict=True,
        ):
            scores = at_least_fp32(functional.linear(t, weight, bias))  # [targets, tokens] of one class
            losses.append(functional.cross_entropy(scores, y, reduction="none"))
        # [M]; the losses within classes are ordered by class and are added in the order of the targets.
        class_nll = -self._class_log_probs(readout, classes).gather(1, target_class[:, None])[:, 0]
        nll = class_nll.index_add(0, by_class, torch.cat(losses)) if losses else class_nll
        return nll.sum(), nll.detach()

    def _class_log_probs(self, readout: Tensor, classes: Int[Tensor, "C"]) -> Tensor:
        """Return the log-probabilities of all classes, normalised over those that occur in `classes`."""
        is_empty = torch.ones(self.num_classes, dtype=torch.bool, device=classes.device).index_fill(0, classes, False)
        scores = at_least_fp32(functional.linear(readout, self.class_weight, self.class_bias))
        return torch.log_softmax(scores.masked_fill(is_empty, -torch.inf), dim=-1)


@implements(TreeOptions)
class TreeOutput(PlainLoss):
    """A binary tree over the tokens (Morin & Bengio 2005, section 4), the Huffman tree of their counts.

    p(y) = prod_n sigmoid(d_n (w_n r + b_n)) over the inner nodes n on the path from the root to y; d_n is 1 if the path
    goes on to the first child of n, and -1 if it goes on to the second.

    The tree is computed from the training text (`data/word_classes.py`) and set by `assign_parents`. With `rows`, the
    probabilities of these tokens are normalised again.
    """

    parents: Tensor
    """[2 V - 2], the parent of each node (see `huffman_parents`), negated for the second child of its parent; as floats
    like everything in a model folder."""

    def __init__(self, options: TreeOptions, readout: int, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.weight = parameter("embedding", vocabulary - 1, readout)  # w_n
        self.bias = parameter("bias", vocabulary - 1)  # b_n
        # A balanced tree, until `assign_parents` sets that of the counts: two nodes after each other have one parent.
        nodes = torch.arange(2 * vocabulary - 2)
        self.register_buffer("parents", vocabulary + nodes.div(2, rounding_mode="floor"))
        self.assign_parents(self.parents)

    def assign_parents(self, parents: Int[Tensor, "nodes"]) -> None:
        """Set the parent of each node except for the root."""
        children = parents.long().argsort(stable=True)  # both children of each inner node, the first one first
        signs = torch.ones_like(children).index_fill(0, children[1::2], -1)
        self.parents = (signs * parents.long()).to(self.weight.device, torch.float32)

    def logits_function(self, rows: Int[Tensor, "C"] | None) -> LogitsFunction:
        levels, order = self._levels()
        # Index of each token in the concatenation of all levels.
        token_index = torch.empty_like(order).index_copy(0, order, torch.arange(len(order), device=order.device))
        columns = token_index[: self.vocabulary] if rows is None else token_index[rows]

        def logits(readout: Tensor) -> Tensor:
            scores = at_least_fp32(functional.linear(readout, self.weight, self.bias))  # [..., V - 1]
            log_probs = scores.new_zeros((*scores.shape[:-1], 1))  # of the root
            by_level = [log_probs]
            for level in levels:
                decisions = functional.logsigmoid(scores[..., level.inner] * level.direction)
                log_probs = log_probs[..., level.parent] + decisions
                by_level.append(log_probs)
            return torch.cat(by_level, dim=-1)[..., columns]

        return logits

    def losses(
        self,
        readout: Float[Tensor, "M R"],
        target: Int[Tensor, "M"],
        smoothing: float = 0.0,
        rows: Int[Tensor, "C"] | None = None,
    ) -> Losses:
        """Return the losses, reading only the nodes on the paths of the targets."""
        assert smoothing == 0.0 and rows is None, "probabilities are products over a path"
        parents, direction = self._tree()
        root = len(parents)
        row = torch.arange(len(target), device=target.device)
        node = target
        # Rows, inner nodes and directions of all decisions, from the tokens up to the root.
        path_rows, path_nodes, path_directions = [], [], []
        while len(node):
            path_rows.append(row)
            path_nodes.append(parents[node] - self.vocabulary)
            path_directions.append(direction[node])
            is_inside = parents[node] != root
            row = row[is_inside]
            node = parents[node][is_inside]
        if not path_rows:
            return readout.sum() * 0.0, at_least_fp32(readout.new_zeros(0))
        decided, inner = torch.cat(path_rows), torch.cat(path_nodes)  # [P] decisions of all targets
        products = at_least_fp32(readout)[decided] * self.weight[inner]  # [P, R]
        scores = (products.sum(1) + self.bias[inner]) * torch.cat(path_directions)
        nll = scores.new_zeros(len(target)).index_add(0, decided, -functional.logsigmoid(scores))
        return nll.sum(), nll.detach()

    def _tree(self) -> tuple[Int[Tensor, "nodes"], Int[Tensor, "nodes"]]:
        """Return the parent of each node, and the direction from its parent to it: 1 to the first child, else -1."""
        signed = self.parents.long()
        return signed.abs(), signed.sign()

    def _levels(self) -> tuple[list[TreeLevel], Int[Tensor, "all"]]:
        """Return the levels below the root, and all nodes in the order of their levels, the root first."""
        parents, direction = self._tree()
        root = len(parents)
        children = parents.argsort(stable=True).view(-1, 2)  # [V - 1, 2] by inner node
        level = parents.new_tensor([root])
        levels: list[TreeLevel] = []
        order = [level]
        while True:
            parent = (level >= self.vocabulary).nonzero()[:, 0].repeat_interleave(2)
            if not len(parent):
                return levels, torch.cat(order)
            inner = level[parent] - self.vocabulary
            level = children[inner[::2]].flatten()
            levels.append(TreeLevel(parent, inner, direction[level]))
            order.append(level)


@implements(AdaptiveOptions)
class AdaptiveOutput(PlainLoss):
    """The adaptive softmax of Grave et al. (2017), for tokens in order of frequency.

    The module is PyTorch's; with `rows`, its parameters are used directly.
    """

    def __init__(self, options: AdaptiveOptions, readout: int, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.layer = nn.AdaptiveLogSoftmaxWithLoss(
            readout, vocabulary, options.cutoffs, div_value=options.factor, head_bias=True
        )
        for module in self.layer.modules():
            if isinstance(module, nn.Linear):
                set_role(module.weight, "embedding")
                if module.bias is not None:
                    set_role(module.bias, "bias")
        for projection, _ in self._tail():
            set_role(projection.weight, "weight")

    def _tail(self) -> list[tuple[nn.Linear, nn.Linear]]:
        """Return the projection of the readout and W_o of each cluster of less frequent tokens."""
        return [(cluster[0], cluster[1]) for cluster in self.layer.tail]  # type: ignore[index]

    def logits_function(self, rows: Int[Tensor, "C"] | None) -> LogitsFunction:
        if rows is None:
            return lambda readout: self.layer.log_prob(readout.flatten(0, -2)).unflatten(0, readout.shape[:-1])
        head_size = self.layer.cutoffs[0]
        head_columns = (rows < head_size).nonzero()[:, 0]
        clusters = []  # of each cluster with any of the tokens: its number, their columns, projection and rows of W_o
        for number, (projection, words) in enumerate(self._tail()):
            low, high = self.layer.cutoffs[number : number + 2]
            columns = ((rows >= low) & (rows < high)).nonzero()[:, 0]
            if len(columns):
                clusters.append((number, columns, projection, words.weight[rows[columns] - low]))
        cluster_rows = [head_size + number for number, *_ in clusters]
        # The head has a row per frequent token, then one per cluster. Clusters with none of the tokens are left out,
        # so that the head is normalised over the others.
        head_rows = torch.cat([rows[head_columns], torch.tensor(cluster_rows, dtype=rows.dtype, device=rows.device)])
        weight, bias = self.layer.head.weight[head_rows], self.layer.head.bias[head_rows]

        def logits(readout: Tensor) -> Tensor:
            head = torch.log_softmax(at_least_fp32(functional.linear(readout, weight, bias)), dim=-1)
            # Every token is in the head or in one of the clusters, so that all columns are filled below.
            scores = head.new_empty((*head.shape[:-1], len(rows)))
            scores[..., head_columns] = head[..., : len(head_columns)]
            log_p_clusters = head[..., len(head_columns) :].split(1, dim=-1)  # one empty chunk without clusters
            for log_p_cluster, (_, columns, projection, words) in zip(log_p_clusters, clusters, strict=False):
                in_cluster = at_least_fp32(functional.linear(projection(readout), words))
                # Within a cluster, too, the softmax is only over the tokens in `rows`.
                scores[..., columns] = torch.log_softmax(in_cluster, dim=-1) + log_p_cluster
            return scores

        return logits

    def losses(
        self,
        readout: Float[Tensor, "M R"],
        target: Int[Tensor, "M"],
        smoothing: float = 0.0,
        rows: Int[Tensor, "C"] | None = None,
    ) -> Losses:
        """Return the losses, reading only the clusters of the targets."""
        assert smoothing == 0.0 and rows is None, "the softmaxes are over clusters"
        with torch.autocast(readout.device.type, enabled=False):  # PyTorch's module does not support mixed types
            nll = -self.layer(at_least_fp32(readout), target).output
        return nll.sum(), nll.detach()


OUTPUTS: Implementations[Callable[..., PlainLoss]] = Implementations(outputs.OUTPUTS)
"""Output layer by `type` of `[model.output]`; names are stored in model folders."""


def make_output(
    config: OutputConfig, readout: int, vocabulary: int, tied: Embedding | None, lexical: int = 0
) -> PlainLoss:
    """Create the output layer of a config; only a single softmax can be tied or have a lexical model (see `Output`)."""
    if isinstance(config, SoftmaxOutputOptions):
        return Output(readout, vocabulary, tied, lexical)
    return OUTPUTS[config.type](config, readout, vocabulary)

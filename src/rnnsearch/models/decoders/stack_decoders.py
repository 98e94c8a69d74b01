"""Decoders with a stack of cells that a bridge starts. They differ in the query of attention and in what is fed back:

| name                | query                   | fed back                | the output reads | source                |
|---------------------|-------------------------|-------------------------|------------------|-----------------------|
| sutskever           | no attention            | nothing                 | h_t              | Sutskever et al. 2014 |
| luong               | h_t, the new top state  | nothing                 | h~_t             | Luong et al. 2015     |
| luong-input-feeding | h_t                     | h~_{t-1}, to the bottom | h~_t             | Luong et al. 2015     |
| neubig              | h_t                     | c_{t-1}, to the bottom  | [h_t; c_t]       | Neubig, chapter 8     |
| rnmt-plus           | h^1_{t-1} of the bottom | c_t, to every layer     | [x^L_t; c_t]     | Chen et al. 2018      |

`accel/fast_forwards.py` and `accel/decoder_steps.py` have faster versions of all of them, by exact class; importers of
OpenNMT-py and JoeyNMT build models with `luong` and `luong-input-feeding`. Tests: tests/importers.

Axes: those of `decoder.py`, and F, the vector that is fed back.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rnnsearch.config import ModelConfig
from rnnsearch.config.decoders import (
    LuongInputFeedingOptions,
    LuongOptions,
    NeubigOptions,
    RNMTPlusOptions,
    StackOptions,
    SutskeverOptions,
)
from rnnsearch.config.registry import implements
from rnnsearch.models.attention.attention import AttentionState
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.bridges import BRIDGES
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders.decoder import Decoder, Reading, make_attention, repeat_steps
from rnnsearch.models.decoders.readouts import ATTENTIONALS
from rnnsearch.models.encoders import EncoderSizes
from rnnsearch.models.layers import Linear
from rnnsearch.models.memory import Encoded, Memory
from rnnsearch.models.stack import Stack, StackState
from rnnsearch.utils.tensors import at_least_fp32


class LayersState(NamedTuple):
    """The state of a stack decoder.

    stack: the states of the layers.
    fed: [N, F], the vector that is fed back, h~_{t-1} or c_{t-1}; None if nothing is.
    """

    stack: StackState
    attention: AttentionState = AttentionState()
    fed: Tensor | None = None

    def dropped_fed(self) -> Tensor:
        """Return the vector that is fed back, with dropout."""
        assert self.fed is not None
        mask = self.stack.fed_mask()
        return self.fed if mask is None else self.fed * mask


class StackDecoder(Decoder):
    """A stack of cells started by a bridge; subclasses define `step`, with or without attention."""

    fed_size: int = 0
    """F, the size of the vector that is fed back; 0 if nothing is."""

    def __init__(self, options: StackOptions, model: ModelConfig, encoder: EncoderSizes, context_size: int = 0) -> None:
        """Create the stack; `context_size` is the size of a context that layers above the bottom read (see `Stack`)."""
        super().__init__(options, model, encoder)
        cell_type = CELLS[options.cell]
        self.stack = Stack(
            cell_type,
            model.embedding,
            options.size,
            options.layers,
            options.residual_from,
            model.dropout,
            context_size,
        )
        self.bridge = BRIDGES[options.bridge](encoder.shapes, self.stack.shapes)
        if self.attends:
            self.attention = make_attention(model, encoder, cell_type.blocks * options.size)

    def start(self, memory: Memory, rng: BatchRng | None = None, steps: int = 0) -> LayersState:
        stack = self.stack.start(self.bridge(memory), rng, steps, self.fed_size)
        attention = self.attention.start(memory, rng, steps) if self.attends else AttentionState()
        if not self.fed_size:
            return LayersState(stack, attention)
        fed = at_least_fp32(memory.summary.new_zeros(memory.mask.shape[0], self.fed_size))  # [B, F]
        return LayersState(stack, attention, fed)

    def inputs(self, y_prev: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        return self.stack.inputs(y_prev)

    def readout(self, y_prev: Float[Tensor, "*rows E"], reading: Reading) -> Float[Tensor, "*rows R"]:
        """Return [state; context], the default of these decoders."""
        return torch.cat([reading.state, reading.context.to(reading.state.dtype)], dim=-1)

    def extra_input_layer(self, size: int) -> Linear:
        """Create the columns of the bottom layer's W for an input of this size in addition to the word."""
        return Linear(size, self.stack.bottom.blocks * self.stack.size, bias=False)


@implements(SutskeverOptions)
class Sutskever(StackDecoder):
    """h^l_0 from the encoder's layer l;  h_t = stack(E y_{t-1}, h_{t-1});  p(y_t) = softmax(W h_t + b), h_t of the top.

    Sutskever et al. 2014, sections 2 and 3.4. The source enters only through h_0.
    """

    def step(self, x: Float[Tensor, "N G"], state: LayersState, memory: Memory) -> tuple[LayersState, Reading]:
        h, stack = self.stack.step(x, state.stack)  # [N, D]
        return LayersState(stack), reading_without_context(h)

    def readout(self, y_prev: Float[Tensor, "*rows E"], reading: Reading) -> Float[Tensor, "*rows R"]:
        return reading.state


def reading_without_context(h: Tensor) -> Reading:
    """Return a reading whose context has size 0."""
    return Reading(state=h, context=h.new_empty(*h.shape[:-1], 0), alpha=None)


@implements(LuongOptions)
class Luong(StackDecoder):
    """The global attention model of Luong et al. 2015 (section 3, eq. 5-7), which attends with the NEW state h_t.

    h_t = stack(E y_{t-1}, h_{t-1});  a_t from h_t of the top layer;  c_t = sum_s a_t(s) h-_s;
    h~_t = tanh(W_c [c_t; h_t]);  p(y_t) = softmax(W_s h~_t).

    With `attentional = "linear"`, h~_t is W_c [c_t; h_t] + b, with `"tanh-bias"` its tanh. No result of attention is
    fed back to the recurrence.
    """

    readout_attribute: ClassVar[str | None] = "attentional"

    def __init__(
        self, options: LuongOptions | LuongInputFeedingOptions, model: ModelConfig, encoder: EncoderSizes
    ) -> None:
        super().__init__(options, model, encoder)
        self.attentional = ATTENTIONALS[options.attentional](encoder.annotation_size, options.size, options.readout)

    def step(self, x: Float[Tensor, "N G"], state: LayersState, memory: Memory) -> tuple[LayersState, Reading]:
        h, stack = self.stack.step(x, state.stack)  # [N, D]
        output, attention = self.attention.step(h, state.attention, memory, x)
        return LayersState(stack, attention), Reading.from_attention(h, output)

    def readout(self, y_prev: Float[Tensor, "*rows E"], reading: Reading) -> Float[Tensor, "*rows R"]:
        t: Tensor = self.attentional(reading.context, reading.state, reading.fusion)
        return t


@implements(LuongInputFeedingOptions)
class LuongInputFeeding(Luong):
    """`luong` with h~_{t-1} concatenated with the word in the bottom layer's input (Luong et al. 2015, section 3.3).

    h_t = stack([E y_{t-1}; h~_{t-1}], h_{t-1}), h~_0 = 0. The state of a reading is h~_t, the output layer's input.
    """

    readout_attribute = None

    def __init__(self, options: LuongInputFeedingOptions, model: ModelConfig, encoder: EncoderSizes) -> None:
        super().__init__(options, model, encoder)
        self.fed_size = options.readout
        self.feeding = self.extra_input_layer(options.readout)
        self.state_size = options.readout

    def step(self, x: Float[Tensor, "N G"], state: LayersState, memory: Memory) -> tuple[LayersState, Reading]:
        state, reading = self._step_separate(x, state, memory)
        assert state.fed is not None
        # h~_t has been computed to be fed back; the output reads the same vector.
        return state, reading._replace(state=state.fed)

    def readout(self, y_prev: Float[Tensor, "*rows E"], reading: Reading) -> Float[Tensor, "*rows R"]:
        return reading.state

    def _step_separate(self, x: Tensor, state: LayersState, memory: Memory) -> tuple[LayersState, Reading]:
        """Return the next state and a reading with h_t and c_t instead of h~_t."""
        # The product with [E y; h~] is a sum of two products, the first of which is x.
        h, stack = self.stack.step(x + self.feeding(state.dropped_fed()), state.stack)  # [N, D]
        output, attention = self.attention.step(h, state.attention, memory, x)
        reading = Reading.from_attention(h, output)
        # x is passed as the word, which this readout does not read.
        h_tilde = self.readout_separate(x, reading)  # [N, F]
        return LayersState(stack, attention, h_tilde), reading

    def unroll_separate(self, x: Float[Tensor, "N I G"], state: LayersState, memory: Memory) -> Reading:
        return repeat_steps(self._step_separate, x, state, memory)

    def readout_separate(self, y_prev: Float[Tensor, "*rows E"], reading: Reading) -> Float[Tensor, "*rows R"]:
        return super().readout(y_prev, reading)

    @property
    def hidden_size(self) -> int:
        return self.stack.size

    def hidden_states(self, x: Float[Tensor, "N I G"], state: LayersState, reading: Reading) -> Float[Tensor, "N I D"]:
        """Return h_t, from the h~_{t-1} that are already known, so that only the stack runs again."""
        assert state.fed is not None
        fed = torch.cat([state.fed[:, None].to(reading.state.dtype), reading.state[:, :-1]], dim=1)  # [N, I, F]
        mask = state.stack.fed_mask(x.shape[1])
        gates = x + self.feeding(fed if mask is None else fed * mask)
        stack = state.stack
        hidden = []
        for gates_t in gates.unbind(1):  # I times [N, G]
            h, stack = self.stack.step(gates_t, stack)
            hidden.append(h)
        return torch.stack(hidden, dim=1)


@implements(NeubigOptions)
class Neubig(StackDecoder):
    """The decoder of Neubig's tutorial (eq. 71-75), which feeds back c_{t-1}.

    h_t = dec([embed(e_{t-1}); c_{t-1}], h_{t-1}) (72), c_0 = 0;  a_{t,j} = attn_score(h_j, h_t) (73);
    alpha_t = softmax(a_t) (74), c_t = H alpha_t (71);  p_t = softmax(W_hs [h_t; c_t] + b_s) (75).

    h_0 comes from the encoder through the bridge: with `annotation`, it is the annotation of EOS as in the tutorial.
    "dec" is a stack of `layers` cells. The readout is [h_t; c_t].
    """

    def __init__(self, options: StackOptions, model: ModelConfig, encoder: EncoderSizes) -> None:
        super().__init__(options, model, encoder)
        self.fed_size = encoder.annotation_size
        self.context = self.extra_input_layer(encoder.annotation_size)
        self.readout_size = options.size + encoder.annotation_size

    def step(self, x: Float[Tensor, "N G"], state: LayersState, memory: Memory) -> tuple[LayersState, Reading]:
        h, stack = self.stack.step(x + self.context(state.dropped_fed()), state.stack)  # [N, D]
        output, attention = self.attention.step(h, state.attention, memory, x)
        return LayersState(stack, attention, output.context), Reading.from_attention(h, output)


@implements(RNMTPlusOptions)
class RNMTPlus(StackDecoder):
    """The decoder of RNMT+ (Chen et al. 2018, "The best of both worlds", section 3).

    c_t = ATT(h^1_{t-1}), from the previous output of the BOTTOM layer (as in GNMT, Wu et al. 2016, eq. 4), over the
    annotations projected to the decoder's size. Every layer reads c_t: h^1_t = f([E y_{t-1}; c_t], h^1_{t-1}),
    h^l_t = f([x^{l-1}_t; c_t], h^l_{t-1}), with residual connections from `residual_from` on. The softmax reads
    [x^L_t; c_t].
    """

    def __init__(self, options: RNMTPlusOptions, model: ModelConfig, encoder: EncoderSizes) -> None:
        super().__init__(options, model, encoder, context_size=options.size)
        self.projection = Linear(encoder.annotation_size, options.size)  # of the annotations
        self.context = self.extra_input_layer(options.size)
        self.readout_size = 2 * options.size

    def remember(self, encoded: Encoded) -> Memory:
        # Keys and contexts are computed from the projected annotations [B, J, D].
        return super().remember(encoded._replace(annotations=self.projection(encoded.annotations)))

    def step(self, x: Float[Tensor, "N G"], state: LayersState, memory: Memory) -> tuple[LayersState, Reading]:
        bottom = state.stack.cells[0].h  # h^1_{t-1} [N, D]
        output, attention = self.attention.step(bottom, state.attention, memory, x)  # c_t [N, D]
        top, stack = self.stack.step(x + self.context(output.context), state.stack, output.context)
        return LayersState(stack, attention), Reading.from_attention(top, output)

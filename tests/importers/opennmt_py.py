"""Random checkpoints in the format of OpenNMT-py 3.5, and a reference implementation of its model and beam search."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

WORDS = {"src": ["a", "b@@", "c", "d", "▁e", "f"], "tgt": ["u", "v", "w@@", "x", "y", "z", "<pad>"]}
SPECIALS = ["<unk>", "<blank>", "<s>", "</s>"]
E, D = 6, 6
OPTIONS = {
    "model_task": "seq2seq",
    "model_type": "text",
    "encoder_type": "brnn",
    "decoder_type": "rnn",
    "rnn_type": "LSTM",
    "layers": 1,
    "global_attention": "general",
    "global_attention_function": "softmax",
    "generator_function": "softmax",
    "copy_attn": False,
    "coverage_attn": False,
    "context_gate": None,
    "position_encoding": False,
    "input_feed": 1,
    "bridge": False,
    "share_decoder_embeddings": False,
    "dropout": [0.3],
    "lora_layers": [],
    "optim": "adam",
    "learning_rate": 0.002,
    "data": {"corpus_1": {"path_src": "train.en", "path_tgt": "train.de"}},
    "_all_transform": set(),
}


class Encoder(nn.Module):
    """The encoder, with OpenNMT-py's parameter names; likewise the modules below."""

    def __init__(self, o: dict[str, Any], table: nn.Module) -> None:
        super().__init__()
        directions = 2 if o["encoder_type"] == "brnn" else 1
        self.embeddings = table
        rnn = getattr(nn, o["rnn_type"])
        self.rnn = rnn(E, D // directions, o["layers"], bidirectional=directions == 2, batch_first=True)
        if o["bridge"]:
            size = D // directions * o["layers"]
            self.bridge = nn.ModuleList(nn.Linear(size, size) for _ in range(2 if o["rnn_type"] == "LSTM" else 1))


class Attention(nn.Module):
    def __init__(self, score: str) -> None:
        super().__init__()
        if score == "general":
            self.linear_in = nn.Linear(D, D, bias=False)
        if score == "mlp":
            self.linear_context = nn.Linear(D, D, bias=False)
            self.linear_query = nn.Linear(D, D)
            self.v = nn.Linear(D, 1, bias=False)
        self.linear_out = nn.Linear(2 * D, D, bias=score == "mlp")


class Layers(nn.Module):
    def __init__(self, cells: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(cells)


class Decoder(nn.Module):
    def __init__(self, o: dict[str, Any], table: nn.Module) -> None:
        super().__init__()
        self.embeddings = table
        if o["input_feed"]:
            cell = getattr(nn, o["rnn_type"] + "Cell")
            self.rnn: nn.Module = Layers([cell(E + D if l == 0 else D, D) for l in range(o["layers"])])
        else:
            self.rnn = getattr(nn, o["rnn_type"])(E, D, o["layers"], batch_first=True)
        if o["global_attention"] != "none":
            self.attn = Attention(o["global_attention"])


def _table(rows: int) -> nn.Module:
    table = nn.Module()
    table.make_embedding = nn.Module()
    table.make_embedding.emb_luts = nn.ModuleList([nn.Embedding(rows, E)])
    return table


def _embed(module: nn.Module, ids: Tensor) -> Tensor:
    embeddings: Tensor = module.embeddings.make_embedding.emb_luts[0](ids)  # type: ignore[union-attr, index, operator]
    return embeddings


class Model(NamedTuple):
    """A model in fp64."""

    options: dict[str, Any]
    vocabularies: dict[str, list[str]]
    encoder: Encoder
    decoder: Decoder
    generator: nn.Linear

    @staticmethod
    def random(**options: Any) -> Model:
        """Return a model with random weights, large enough that its translations differ."""
        torch.manual_seed(7)
        o = OPTIONS | options
        vocabularies = {stream: [*SPECIALS, *words] for stream, words in WORDS.items()}
        tables = [_table(len(vocabularies[side])) for side in ("src", "tgt")]
        generator = nn.Linear(D, len(vocabularies["tgt"]))
        model = Model(o, vocabularies, Encoder(o, tables[0]), Decoder(o, tables[1]), generator)
        for part in model[2:]:
            for parameter in part.parameters():
                nn.init.uniform_(parameter, -1.2, 1.2)
            part.double()
        with torch.no_grad():
            if o["share_decoder_embeddings"]:
                generator.weight.copy_(tables[1].make_embedding.emb_luts[0].weight)  # type: ignore[union-attr, index]
            generator.bias[1:3] = -50.0  # trained models do not output padding or BOS
            generator.bias[0] -= 2.0
            generator.bias[3] = -0.5
        return model

    def save(self, path: Path, /, **entries: Any) -> Path:
        """Save the model like OpenNMT-py; `entries` replaces entries of the checkpoint."""
        weights = {
            f"{name}.{key}": tensor.float()
            for name in ("encoder", "decoder")
            for key, tensor in getattr(self, name).state_dict().items()
        }
        checkpoint = {
            "model": weights,
            "generator": {key: tensor.float() for key, tensor in self.generator.state_dict().items()},
            "vocab": {**self.vocabularies, "data_task": "seq2seq", "decoder_start_token": "<s>"},
            "opt": argparse.Namespace(**self.options),
            "optim": {"training_step": 41, "decay_step": 41, "optimizer": {"state": {}, "param_groups": []}},
        }
        torch.save(checkpoint | entries, path)
        return path

    @torch.no_grad()
    def start(self, line: str) -> tuple[Tensor, Any]:
        """Return the annotations [J, D] of a line of space-separated words, without EOS, and the initial state."""
        token_ids = {token: id for id, token in enumerate(self.vocabularies["src"])}
        ids = torch.tensor([[token_ids.get(word, 0) for word in line.split(" ")]])
        annotations, finals = self.encoder.rnn(_embed(self.encoder, ids))
        finals = finals if isinstance(finals, tuple) else (finals,)
        if self.options["bridge"]:
            finals = tuple(_bridged(layer, part) for layer, part in zip(self.encoder.bridge, finals, strict=True))
        if self.options["encoder_type"] == "brnn":
            finals = tuple(torch.cat([part[0::2], part[1::2]], 2) for part in finals)
        return annotations[0], (finals, torch.zeros(1, D, dtype=torch.float64))

    @torch.no_grad()
    def step(self, annotations: Tensor, state: Any, y: int) -> tuple[Tensor, Any]:
        """Return log p of all tokens, and the next state."""
        hidden, fed = state
        x = _embed(self.decoder, torch.tensor([y]))
        if self.options["input_feed"]:
            x = torch.cat([x, fed], 1)
            new = []
            for l, cell in enumerate(self.decoder.rnn.layers):  # type: ignore[arg-type]
                old = tuple(part[l] for part in hidden)
                after = cell(x, old if len(old) == 2 else old[0])
                new.append(after if isinstance(after, tuple) else (after,))
                x = new[-1][0]
            hidden = tuple(torch.stack(part) for part in zip(*new, strict=True))
        else:
            out, hidden = self.decoder.rnn(x[:, None], hidden if len(hidden) == 2 else hidden[0])
            x, hidden = out[:, 0], hidden if isinstance(hidden, tuple) else (hidden,)
        if self.options["global_attention"] != "none":
            x = self._attended(x, annotations)
        return self.generator(x)[0].log_softmax(0), (hidden, x)

    def _attended(self, h: Tensor, annotations: Tensor) -> Tensor:
        """Return h~ like `GlobalAttention`, in a loop over positions; `mlp` has no tanh."""
        score = self.options["global_attention"]
        attn = self.decoder.attn
        energies = []
        for annotation in annotations:
            if score == "mlp":
                units = torch.tanh(attn.linear_query(h[0]) + attn.linear_context(annotation))
                energies.append(attn.v(units)[0])
            else:
                energies.append((attn.linear_in(h[0]) if score == "general" else h[0]) @ annotation)
        alpha = torch.stack(energies).softmax(0)
        context = sum(a * annotation for a, annotation in zip(alpha, annotations, strict=True))
        assert isinstance(context, Tensor)
        out: Tensor = attn.linear_out(torch.cat([context[None], h], 1))
        return out if score == "mlp" else torch.tanh(out)

    def translate(self, line: str, beam: int, n_best: int) -> list[tuple[str, float]]:
        """Search like `BeamSearch` of OpenNMT-py with its defaults.

        A score is the mean over one token more than are scored; translations have at most 1.25 times the source's
        length plus 5 tokens.
        """
        annotations, first = self.start(line)
        max_length = int(len(line.split(" ")) * 1.25 + 5)
        live = [((2,), 0.0, first)]
        ended = []
        for length in range(1, max_length + 1):
            candidates = []
            for ids, total, state in live:
                log_p, next_state = self.step(annotations, state, ids[-1])
                candidates += [((*ids, y), total + float(log_p[y]), next_state) for y in range(len(log_p))]
            candidates = sorted(candidates, key=lambda candidate: -candidate[1])[:beam]
            is_done = [ids[-1] == 3 or length == max_length for ids, _, _ in candidates]
            for (ids, total, _), done in zip(candidates, is_done, strict=True):
                if done:
                    ended.append((ids, total / (length + 1)))
            if is_done[0] and len(ended) >= n_best:
                break
            live = [candidate for candidate, done in zip(candidates, is_done, strict=True) if not done]
        tokens = self.vocabularies["tgt"]
        best = sorted(ended, key=lambda hypothesis: -hypothesis[1])[:n_best]
        return [(" ".join(tokens[id] for id in ids[1:] if id != 3), score) for ids, score in best]


def _bridged(layer: nn.Module, states: Tensor) -> Tensor:
    """Return the final states [layers * directions, batch, size] after `RNNEncoder._bridge`."""
    states = states.permute(1, 0, 2).contiguous()
    return torch.relu(layer(states.view(-1, layer.in_features))).view(states.shape).permute(1, 0, 2)  # type: ignore[arg-type]

"""Checkpoints as OpenNMT-py 3.5 writes them, with drawn weights, and its equations and its beam search as loops."""

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
    """Its parameters, by its names."""

    def __init__(self, o: dict[str, Any], table: nn.Module) -> None:
        super().__init__()
        ways = 2 if o["encoder_type"] == "brnn" else 1
        self.embeddings, kind = table, getattr(nn, o["rnn_type"])
        self.rnn = kind(E, D // ways, o["layers"], bidirectional=ways == 2, batch_first=True)
        if o["bridge"]:
            wide = D // ways * o["layers"]
            self.bridge = nn.ModuleList(nn.Linear(wide, wide) for _ in range(2 if o["rnn_type"] == "LSTM" else 1))


class Attention(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        if kind == "general":
            self.linear_in = nn.Linear(D, D, bias=False)
        if kind == "mlp":
            self.linear_context, self.linear_query = nn.Linear(D, D, bias=False), nn.Linear(D, D)
            self.v = nn.Linear(D, 1, bias=False)
        self.linear_out = nn.Linear(2 * D, D, bias=kind == "mlp")


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
    made = nn.Module()
    made.make_embedding = nn.Module()
    made.make_embedding.emb_luts = nn.ModuleList([nn.Embedding(rows, E)])
    return made


def _embed(side: nn.Module, ids: Tensor) -> Tensor:
    found: Tensor = side.embeddings.make_embedding.emb_luts[0](ids)  # type: ignore[union-attr, index, operator]
    return found


class Model(NamedTuple):
    """A checkpoint's model, in fp64."""

    options: dict[str, Any]
    symbols: dict[str, list[str]]
    encoder: Encoder
    decoder: Decoder
    generator: nn.Linear

    @staticmethod
    def drawn(**changed: Any) -> Model:
        """Of a seed, with weights wide enough for translations that differ."""
        torch.manual_seed(7)
        o = OPTIONS | changed
        symbols = {side: [*SPECIALS, *words] for side, words in WORDS.items()}
        tables = [_table(len(symbols[side])) for side in ("src", "tgt")]
        generator = nn.Linear(D, len(symbols["tgt"]))
        model = Model(o, symbols, Encoder(o, tables[0]), Decoder(o, tables[1]), generator)
        for part in model[2:]:
            for parameter in part.parameters():
                nn.init.uniform_(parameter, -1.2, 1.2)
            part.double()
        with torch.no_grad():
            if o["share_decoder_embeddings"]:
                generator.weight.copy_(tables[1].make_embedding.emb_luts[0].weight)  # type: ignore[union-attr, index]
            generator.bias[1:3] = -50.0  # trained models say neither padding nor the symbol before the first
            generator.bias[0] -= 2.0
            generator.bias[3] = -0.5
        return model

    def save(self, path: Path, /, **changed: Any) -> Path:
        """As OpenNMT-py does; `changed`: other parts of the file."""
        weights = {
            f"{name}.{key}": tensor.float()
            for name in ("encoder", "decoder")
            for key, tensor in getattr(self, name).state_dict().items()
        }
        whole = {
            "model": weights,
            "generator": {key: tensor.float() for key, tensor in self.generator.state_dict().items()},
            "vocab": {**self.symbols, "data_task": "seq2seq", "decoder_start_token": "<s>"},
            "opt": argparse.Namespace(**self.options),
            "optim": {"training_step": 41, "decay_step": 41, "optimizer": {"state": {}, "param_groups": []}},
        }
        torch.save(whole | changed, path)
        return path

    @torch.no_grad()
    def start(self, line: str) -> tuple[Tensor, Any]:
        """The annotations [J, D] of a line cut at its spaces, without an end, and the decoder's first states."""
        places = {symbol: id for id, symbol in enumerate(self.symbols["src"])}
        ids = torch.tensor([[places.get(word, 0) for word in line.split(" ")]])
        annotations, finals = self.encoder.rnn(_embed(self.encoder, ids))
        finals = finals if isinstance(finals, tuple) else (finals,)
        if self.options["bridge"]:
            finals = tuple(_bridged(layer, part) for layer, part in zip(self.encoder.bridge, finals, strict=True))
        if self.options["encoder_type"] == "brnn":
            finals = tuple(torch.cat([part[0::2], part[1::2]], 2) for part in finals)
        return annotations[0], (finals, torch.zeros(1, D, dtype=torch.float64))

    @torch.no_grad()
    def step(self, annotations: Tensor, state: Any, y: int) -> tuple[Tensor, Any]:
        """log p of every symbol, and the next state."""
        hidden, fed = state
        x = _embed(self.decoder, torch.tensor([y]))
        if self.options["input_feed"]:
            x, new = torch.cat([x, fed], 1), []
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
        """h~ of `GlobalAttention`, position by position; no tanh with `mlp`."""
        kind, attn = self.options["global_attention"], self.decoder.attn
        energies = []
        for annotation in annotations:
            if kind == "mlp":
                units = torch.tanh(attn.linear_query(h[0]) + attn.linear_context(annotation))
                energies.append(attn.v(units)[0])
            else:
                energies.append((attn.linear_in(h[0]) if kind == "general" else h[0]) @ annotation)
        alpha = torch.stack(energies).softmax(0)
        context = sum(a * annotation for a, annotation in zip(alpha, annotations, strict=True))
        assert isinstance(context, Tensor)
        out: Tensor = attn.linear_out(torch.cat([context[None], h], 1))
        return out if kind == "mlp" else torch.tanh(out)

    def translate(self, line: str, beam: int, n_best: int) -> list[tuple[str, float]]:
        """`BeamSearch` of OpenNMT-py with its own defaults: the mean over one symbol more than are scored, at most 1.25
        times the source's length and 5 more."""
        annotations, first = self.start(line)
        most = int(len(line.split(" ")) * 1.25 + 5)
        live, ended = [((2,), 0.0, first)], []
        for length in range(1, most + 1):
            grown = []
            for ids, total, state in live:
                log_p, after = self.step(annotations, state, ids[-1])
                grown += [((*ids, y), total + float(log_p[y]), after) for y in range(len(log_p))]
            grown = sorted(grown, key=lambda one: -one[1])[:beam]
            over = [ids[-1] == 3 or length == most for ids, _, _ in grown]
            for (ids, total, _), done in zip(grown, over, strict=True):
                if done:
                    ended.append((ids, total / (length + 1)))
            if over[0] and len(ended) >= n_best:
                break
            live = [one for one, done in zip(grown, over, strict=True) if not done]
        names = self.symbols["tgt"]
        best = sorted(ended, key=lambda one: -one[1])[:n_best]
        return [(" ".join(names[id] for id in ids[1:] if id != 3), score) for ids, score in best]


def _bridged(layer: nn.Module, states: Tensor) -> Tensor:
    """`RNNEncoder._bridge`, of [layers * directions, batch, size]."""
    states = states.permute(1, 0, 2).contiguous()
    return torch.relu(layer(states.view(-1, layer.in_features))).view(states.shape).permute(1, 0, 2)  # type: ignore[arg-type]

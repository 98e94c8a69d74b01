"""Checkpoints as JoeyNMT 2.3 writes them, with drawn weights, and its equations as loops."""

from __future__ import annotations

import copy
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from torch import Tensor, nn

WORDS = {"src": ["a", "b@@", "c", "d", "▁e", "f"], "trg": ["u", "v", "w@@", "x", "y", "z"]}
SPECIALS = ["<unk>", "<pad>", "<s>", "</s>"]
E, D, H = 5, 6, 4
CONFIG: dict[str, Any] = {
    "name": "drawn",
    "data": {side: {"lang": language, "level": "word"} for side, language in (("src", "en"), ("trg", "de"))},
    "testing": {"beam_size": 3, "beam_alpha": 0.7},
    "training": {"optimizer": "adam", "learning_rate": 0.002},
    "model": {
        "tied_softmax": False,
        "encoder": {"type": "recurrent", "rnn_type": "gru", "num_layers": 1, "bidirectional": True}
        | {"embeddings": {"embedding_dim": E, "scale": False, "dropout": 0.1}},
        "decoder": {"type": "recurrent", "rnn_type": "gru", "num_layers": 1, "attention": "bahdanau"}
        | {"init_hidden": "bridge", "input_feeding": True, "activation": "tanh", "dropout": 0.2, "hidden_dropout": 0.3}
        | {"embeddings": {"embedding_dim": E, "scale": False, "dropout": 0.1}},
    },
}


def config(**changed: Any) -> dict[str, Any]:
    """The configuration with other values of options, by their paths with __ for a dot."""
    made = copy.deepcopy(CONFIG)
    for path, value in changed.items():
        *tables, name = path.split("__")
        table = made
        for part in tables:
            table = table.setdefault(part, {})
        table[name] = value
    return made


class Model(NamedTuple):
    """A checkpoint's model, in fp64."""

    config: dict[str, Any]
    symbols: dict[str, list[str]]
    part: nn.ModuleDict

    @staticmethod
    def drawn(**changed: Any) -> Model:
        """Of a seed, with weights wide enough for translations that differ."""
        torch.manual_seed(7)
        whole = config(**changed)
        encoder, decoder = whole["model"]["encoder"], whole["model"]["decoder"]
        symbols = {side: [*SPECIALS, *words] for side, words in WORDS.items()}
        embeddings = {"src_embed": E, "trg_embed": D if whole["model"]["tied_softmax"] else E}
        read = embeddings["trg_embed"] + (D if decoder["input_feeding"] else 0)
        bahdanau = {"query_layer": nn.Linear(D, D, bias=False), "energy_layer": nn.Linear(D, 1, bias=False)}
        attention = {"key_layer": nn.Linear(2 * H, D, bias=False)}
        made: dict[str, nn.Module] = {
            "rnn": _rnn(decoder["rnn_type"])(read, D, decoder["num_layers"], batch_first=True),
            "att_vector_layer": nn.Linear(D + 2 * H, D),
            "output_layer": nn.Linear(D, len(symbols["trg"]), bias=False),
            "attention": nn.ModuleDict(attention | (bahdanau if decoder["attention"] == "bahdanau" else {})),
        }
        if decoder["init_hidden"] == "bridge":
            made["bridge_layer"] = nn.Linear(2 * H, D)
        rnn = _rnn(encoder["rnn_type"])(E, H, encoder["num_layers"], bidirectional=True, batch_first=True)
        part = nn.ModuleDict({"encoder": nn.ModuleDict({"rnn": rnn}), "decoder": nn.ModuleDict(made)})
        for (name, size), words in zip(embeddings.items(), symbols.values(), strict=True):
            part[name] = nn.ModuleDict({"lut": nn.Embedding(len(words), size)})
        for parameter in part.parameters():
            nn.init.uniform_(parameter, -1.2, 1.2)
        return Model(whole, symbols, part.double())

    def save(self, folder: Path, /, **changed: Any) -> Path:
        """As JoeyNMT does; `changed`: other parts of the file."""
        folder.mkdir(exist_ok=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(self.config), encoding="utf-8")
        for side, symbols in self.symbols.items():
            (folder / f"{side}_vocab.txt").write_text("\n".join(symbols) + "\n", encoding="utf-8")
        weights = OrderedDict((name, tensor.float()) for name, tensor in self.part.state_dict().items())
        whole = {"model_state": weights, "optimizer_state": {}, "scaler_state": None, "stats_state": {"steps": 3}}
        torch.save(whole | changed, folder / "3.ckpt")
        return folder / "3.ckpt"

    @torch.no_grad()
    def start(self, line: str) -> tuple[Tensor, Any]:
        """The annotations of a line cut at its spaces and its end, and the decoder's first states."""
        places = {symbol: id for id, symbol in enumerate(self.symbols["src"])}
        ids = torch.tensor([[*(places.get(word, 0) for word in line.split(" ")), 3]])
        annotations, finals = self.part["encoder"]["rnn"](self.part["src_embed"]["lut"](ids))
        final = (finals[0] if isinstance(finals, tuple) else finals)[-2:]
        decoder = self.part["decoder"]
        layers = self.config["model"]["decoder"]["num_layers"]
        h = torch.zeros(1, D, dtype=torch.float64)
        if "bridge_layer" in decoder:
            h = torch.tanh(decoder["bridge_layer"](torch.cat([final[0], final[1]], 1)))
        hidden = h[None].repeat(layers, 1, 1)
        return annotations[0], ((hidden, hidden), torch.zeros(1, D, dtype=torch.float64))

    @torch.no_grad()
    def step(self, annotations: Tensor, state: Any, y: int) -> tuple[Tensor, Any]:
        """log p of every symbol, and the next state."""
        (hidden, fed), decoder = state, self.part["decoder"]
        x = self.part["trg_embed"]["lut"](torch.tensor([y]))
        if self.config["model"]["decoder"]["input_feeding"]:
            x = torch.cat([x, fed], 1)
        lstm = isinstance(decoder["rnn"], nn.LSTM)
        _, hidden = decoder["rnn"](x[:, None], hidden if lstm else hidden[0])
        hidden = hidden if lstm else (hidden, hidden)
        query, attention, energies = hidden[0][-1], decoder["attention"], []
        for annotation in annotations:
            key = attention["key_layer"](annotation)
            if "query_layer" in attention:
                energies.append(attention["energy_layer"](torch.tanh(attention["query_layer"](query[0]) + key))[0])
            else:
                energies.append(query[0] @ key)
        alpha = torch.stack(energies).softmax(0)
        fed = torch.tanh(decoder["att_vector_layer"](torch.cat([query, (alpha @ annotations)[None]], 1)))
        return decoder["output_layer"](fed)[0].log_softmax(0), (hidden, fed)


def _rnn(kind: str) -> Any:
    return nn.LSTM if kind == "lstm" else nn.GRU

"""Random checkpoints in the format of JoeyNMT 2.3, and a reference implementation of its model."""

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
    "name": "random",
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


def config(**options: Any) -> dict[str, Any]:
    """Return the config with other options, whose paths have __ for a dot."""
    config = copy.deepcopy(CONFIG)
    for path, value in options.items():
        *tables, name = path.split("__")
        table = config
        for key in tables:
            table = table.setdefault(key, {})
        table[name] = value
    return config


class Model(NamedTuple):
    """A model in fp64."""

    config: dict[str, Any]
    vocabularies: dict[str, list[str]]
    modules: nn.ModuleDict

    @staticmethod
    def random(**options: Any) -> Model:
        """Return a model with random weights, large enough that its translations differ."""
        torch.manual_seed(7)
        values = config(**options)
        encoder = values["model"]["encoder"]
        decoder = values["model"]["decoder"]
        vocabularies = {stream: [*SPECIALS, *words] for stream, words in WORDS.items()}
        embeddings = {"src_embed": E, "trg_embed": D if values["model"]["tied_softmax"] else E}
        decoder_input = embeddings["trg_embed"] + (D if decoder["input_feeding"] else 0)
        bahdanau = {"query_layer": nn.Linear(D, D, bias=False), "energy_layer": nn.Linear(D, 1, bias=False)}
        attention = {"key_layer": nn.Linear(2 * H, D, bias=False)}
        decoder_modules: dict[str, nn.Module] = {
            "rnn": _rnn(decoder["rnn_type"])(decoder_input, D, decoder["num_layers"], batch_first=True),
            "att_vector_layer": nn.Linear(D + 2 * H, D),
            "output_layer": nn.Linear(D, len(vocabularies["trg"]), bias=False),
            "attention": nn.ModuleDict(attention | (bahdanau if decoder["attention"] == "bahdanau" else {})),
        }
        if decoder["init_hidden"] == "bridge":
            decoder_modules["bridge_layer"] = nn.Linear(2 * H, D)
        rnn = _rnn(encoder["rnn_type"])(E, H, encoder["num_layers"], bidirectional=True, batch_first=True)
        modules = nn.ModuleDict({"encoder": nn.ModuleDict({"rnn": rnn}), "decoder": nn.ModuleDict(decoder_modules)})
        for (name, size), words in zip(embeddings.items(), vocabularies.values(), strict=True):
            modules[name] = nn.ModuleDict({"lut": nn.Embedding(len(words), size)})
        for parameter in modules.parameters():
            nn.init.uniform_(parameter, -1.2, 1.2)
        return Model(values, vocabularies, modules.double())

    def save(self, folder: Path, /, **entries: Any) -> Path:
        """Save the model like JoeyNMT; `entries` replaces entries of the checkpoint."""
        folder.mkdir(exist_ok=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(self.config), encoding="utf-8")
        for stream, tokens in self.vocabularies.items():
            (folder / f"{stream}_vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
        weights = OrderedDict((name, tensor.float()) for name, tensor in self.modules.state_dict().items())
        checkpoint = {"model_state": weights, "optimizer_state": {}, "scaler_state": None, "stats_state": {"steps": 3}}
        torch.save(checkpoint | entries, folder / "3.ckpt")
        return folder / "3.ckpt"

    @torch.no_grad()
    def start(self, line: str) -> tuple[Tensor, Any]:
        """Return the annotations of a line of space-separated words and EOS, and the initial state."""
        token_ids = {token: id for id, token in enumerate(self.vocabularies["src"])}
        ids = torch.tensor([[*(token_ids.get(word, 0) for word in line.split(" ")), 3]])
        annotations, finals = self.modules["encoder"]["rnn"](self.modules["src_embed"]["lut"](ids))
        final = (finals[0] if isinstance(finals, tuple) else finals)[-2:]
        decoder = self.modules["decoder"]
        layers = self.config["model"]["decoder"]["num_layers"]
        h = torch.zeros(1, D, dtype=torch.float64)
        if "bridge_layer" in decoder:
            h = torch.tanh(decoder["bridge_layer"](torch.cat([final[0], final[1]], 1)))
        hidden = h[None].repeat(layers, 1, 1)
        return annotations[0], ((hidden, hidden), torch.zeros(1, D, dtype=torch.float64))

    @torch.no_grad()
    def step(self, annotations: Tensor, state: Any, y: int) -> tuple[Tensor, Any]:
        """Return log p of all tokens, and the next state."""
        hidden, fed = state
        decoder = self.modules["decoder"]
        x = self.modules["trg_embed"]["lut"](torch.tensor([y]))
        if self.config["model"]["decoder"]["input_feeding"]:
            x = torch.cat([x, fed], 1)
        is_lstm = isinstance(decoder["rnn"], nn.LSTM)
        _, hidden = decoder["rnn"](x[:, None], hidden if is_lstm else hidden[0])
        hidden = hidden if is_lstm else (hidden, hidden)
        query = hidden[0][-1]
        attention = decoder["attention"]
        energies = []
        for annotation in annotations:
            key = attention["key_layer"](annotation)
            if "query_layer" in attention:
                energies.append(attention["energy_layer"](torch.tanh(attention["query_layer"](query[0]) + key))[0])
            else:
                energies.append(query[0] @ key)
        alpha = torch.stack(energies).softmax(0)
        fed = torch.tanh(decoder["att_vector_layer"](torch.cat([query, (alpha @ annotations)[None]], 1)))
        return decoder["output_layer"](fed)[0].log_softmax(0), (hidden, fed)


def _rnn(rnn_type: str) -> Any:
    return nn.LSTM if rnn_type == "lstm" else nn.GRU

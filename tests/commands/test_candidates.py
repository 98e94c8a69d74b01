"""`rnnsearch candidates`, and `translate --candidates`."""

import re

from safetensors.torch import load_file

from rnnsearch.search.candidates import CANDIDATES_FILE

CAT = "the small cat sees the dog."
BIRD = "the old bird finds the tree."


def test_candidate_lists_are_learned_and_used(cli, model_copy, corpus):
    missing = cli("translate", model_copy, "--candidates", 5, stdin=f"{CAT}\n")
    assert missing.code == 1
    assert f"{model_copy}: must contain candidates.safetensors for candidate lists" in missing.err
    learned = cli("candidates", model_copy, corpus / "train.en", corpus / "train.de")
    assert learned.code == 0
    assert re.search(r"candidates\.safetensors: translations of \d+ of \d+ source tokens", learned.err)
    translated = cli("translate", model_copy, "--candidates", 100, stdin=f"{CAT}\n{BIRD}\n")
    assert translated == cli("translate", model_copy, stdin=f"{CAT}\n{BIRD}\n")
    assert len(cli("translate", model_copy, "--candidates", 1, stdin=f"{CAT}\n{BIRD}\n").lines) == 2


def test_number_of_frequent_tokens_is_an_option(cli, model_copy, corpus):
    assert cli("candidates", model_copy, corpus / "train.en", corpus / "train.de", "--frequent", 3).code == 0
    assert len(load_file(model_copy / CANDIDATES_FILE)["frequent"]) == 3
    assert len(cli("translate", model_copy, "--candidates", 5, stdin=f"{CAT}\n").lines) == 1

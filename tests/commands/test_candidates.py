"""`rnnsearch candidates`, and `translate --candidates`."""

import re

CAT = "the small cat sees the dog."
BIRD = "the old bird finds the tree."


def test_candidate_lists(cli, own, corpus):
    refused = cli("translate", own, "--candidates", 5, stdin=f"{CAT}\n")
    assert refused.code == 1
    assert f"{own}: must hold candidates.safetensors for candidate lists" in refused.err
    learned = cli("candidates", own, corpus / "train.en", corpus / "train.de")
    assert learned.code == 0
    assert re.search(r"candidates\.safetensors: translations of \d+ of \d+ source symbols", learned.err)
    found = cli("translate", own, "--candidates", 100, stdin=f"{CAT}\n{BIRD}\n")
    assert found == cli("translate", own, stdin=f"{CAT}\n{BIRD}\n")
    assert len(cli("translate", own, "--candidates", 1, stdin=f"{CAT}\n{BIRD}\n").lines) == 2

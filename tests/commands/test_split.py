"""`rnnsearch translate` with several sentences per line."""

CAT = "the small cat sees the dog."
BIRD = "The old bird finds the tree."
HOUSE = "The house is big!"
PARAGRAPH = f"{CAT} {BIRD}  {HOUSE}"


def test_sentences_of_a_line_are_translated_separately(cli, model):
    separate = cli("translate", model, stdin=f"{CAT}\n{BIRD}\n{HOUSE}\n").lines
    lines = cli("translate", model, stdin=f"{CAT}\n{PARAGRAPH}\n\n{BIRD}\n").lines
    assert lines == [separate[0], "{} {}  {}".format(*separate), "", separate[1]]


def test_split_lines_is_one_sentence_per_line(cli, model):
    whole = cli("translate", model, "--split", "lines", "--format", "json", stdin=f"{PARAGRAPH}\n{CAT}\n").rows
    assert "sentences" not in whole[0]
    assert whole[0]["source_tokens"].count("</s>") == 1
    split = cli("translate", model, "--format", "json", stdin=f"{PARAGRAPH}\n{CAT}\n").rows
    assert whole[1] == split[1], "a line of one sentence is translated as before"


def test_json_alignments_and_n_best_of_joined_lines(cli, model, tmp_path):
    links = tmp_path / "links"
    arguments = ("translate", model, "--format", "json", "--n-best", "2", "--alignments", links)
    row = cli(*arguments, stdin=f"{PARAGRAPH}\n").rows[0]
    parts = cli("translate", model, "--format", "json", "--n-best", "2", stdin=f"{CAT}\n{BIRD}\n{HOUSE}\n").rows
    assert row["source"] == PARAGRAPH
    assert [sentence["text"] for sentence in row["sentences"]] == [part["text"] for part in parts]
    assert row["tokens"] == [token for part in parts for token in part["tokens"]]
    assert len(row["token_scores"]) == len(row["tokens"])
    assert row["attention"] is None
    assert row["sentences"][1]["attention"] == parts[1]["attention"]
    num_words = [len(part["source"].split()) for part in parts], [len(part["text"].split()) for part in parts]
    expected = []
    for n, part in enumerate(parts):
        shift = sum(num_words[0][:n]), sum(num_words[1][:n])
        expected += [[shift[0] + i, shift[1] + j] for i, j in part["alignment"]]
    assert row["alignment"] == sorted(expected)
    assert links.read_text() == " ".join(f"{i}-{j}" for i, j in row["alignment"]) + "\n"
    second = row["n_best"][1]
    assert second["text"] == "{} {}  {}".format(*[part["n_best"][-1]["text"] for part in parts])
    assert second["score"] <= row["score"]


def test_tags_span_sentences(cli, model):
    line = "the <b>small cat sees the dog. The old bird</b> finds the tree."
    result = cli("translate", model, "--tags", stdin=f"{line}\n").lines[0]
    assert result.count("<b>") == result.count("</b>") == 1
    plain = cli("translate", model, stdin=f"{CAT} {BIRD}\n").lines[0]
    assert result.replace("<b>", "").replace("</b>", "") == plain


def test_glossary_terms_are_forced_per_sentence(cli, model, tmp_path):
    glossary = tmp_path / "terms.tsv"
    glossary.write_text("bird\tHund\n")
    separate = cli("translate", model, "--glossary", glossary, stdin=f"{CAT}\n{BIRD}\n").lines
    assert cli("translate", model, "--glossary", glossary, stdin=f"{CAT} {BIRD}\n").lines == [" ".join(separate)]


def test_token_limit_applies_per_sentence(cli, model):
    limit = ("--max-source", "12")
    result = cli("translate", model, *limit, stdin=f"{PARAGRAPH}\n{CAT} {'the cat ' * 20}\n")
    assert result.lines[0] and not result.lines[1]
    assert "<standard input>:2: must have at most 12 tokens" in result.err
    assert cli("translate", model, "--split", "lines", *limit, stdin=f"{PARAGRAPH}\n").lines == [""]


def test_lines_with_very_many_sentences_are_not_translated(cli, model):
    result = cli("translate", model, stdin=f"{'A! ' * 10_001}\n{CAT}\n")
    assert result.lines[0] == "" and result.lines[1]
    assert "<standard input>:1: must have at most 10,000 sentences" in result.err


def test_text_without_letters_is_copied(cli, model):
    lines = ["5", "---", "•", "2024-05-17", "\u200b", "\u00ad", f"5. {CAT}", "1) - 2!"]
    result = cli("translate", model, stdin="".join(f"{line}\n" for line in lines)).lines
    assert result[:6] == ["5", "---", "•", "2024-05-17", "", ""]
    assert result[7] == "1) - 2!"

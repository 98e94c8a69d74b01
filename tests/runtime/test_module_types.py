"""The types of the JavaScript module beside the module itself, in Node: no name is in one alone."""

import json
import re
import shutil
import subprocess

import pytest

from rnnsearch.export.engine_file import export
from rnnsearch.export.web_page import write_module
from tests.engines import engine_for_browsers, require_native_code
from tests.untrained import BAHDANAU, write_model

NAMES = """
import * as module from "./index.js";
const own = Object.getOwnPropertyNames(module.Translator.prototype).filter((name) => name !== "constructor");
console.log(JSON.stringify([Object.keys(module), own]));
"""
ASKED = """
import { readFileSync } from "node:fs";
import { load, RnnsearchError } from "./index.js";
const translator = await load(readFileSync("m.rnn"), { wasm: readFileSync("engine.wasm") });
const faults = [];
for (const ask of [
  () => translator.translate(["the dog", "a cat"], { prefixes: "ei" }),
  () => translator.nBest("the dog", 1),
  () => translator.nBest(["the dog"], 1, 2, "e"),
]) {
  try {
    await ask();
  } catch (error) {
    faults.push(error instanceof RnnsearchError && error.message);
  }
}
const [one] = translator.nBest(["the dog"], 1, 2, ["e"]);
const given = await translator.translate("the dog", { prefixes: "e", nBest: 1 });
const fields = [translator, given[0]].map((found) => Object.keys(found));
console.log(JSON.stringify({ faults, same: one[0].text === given[0].text, fields }));
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """The module's folder, with an engine file; what a script in it prints, as JSON."""
    if (node := shutil.which("node")) is None:
        pytest.skip("needs node")
    require_native_code()
    folder = tmp_path_factory.mktemp("module")
    write_module(folder, engine_for_browsers())
    export(write_model(folder / "model", BAHDANAU), folder / "m.rnn")

    def said(script):
        (folder / "script.mjs").write_text(script)
        ran = subprocess.run([node, "script.mjs"], cwd=folder, capture_output=True, timeout=120, check=True)
        return json.loads(ran.stdout)

    said.types = (folder / "index.d.ts").read_text(encoding="utf-8")
    return said


def body(types, name):
    """What stands in a class or an interface."""
    return re.search(rf"(?:class|interface) {name} .*?\n}}", types, re.DOTALL).group()


def test_names(module):
    exported, methods = module(NAMES)
    assert set(re.findall(r"^export (?:class|function) (\w+)", module.types, re.MULTILINE)) == set(exported)
    translator = body(module.types, "Translator")
    assert set(re.findall(r"^  (\w+)\(", translator, re.MULTILINE)) == set(methods)
    fields = [re.findall(r"^  (?:readonly )?(\w+):", body(module.types, name), re.MULTILINE) for name in
              ("Translator", "Translation")]  # fmt: skip
    assert [set(own) for own in module(ASKED)["fields"]] == [set(own) for own in fields]


def test_what_is_a_list_must_be_one(module):
    found = module(ASKED)
    assert found["faults"] == ["texts must be a list, and prefixes another, one for each text"] * 3
    assert found["same"]


def test_options_with_and_without_a_number_have_types_of_their_own(module):
    """Else what is typed as one translation may be a list."""
    assert "nBest" not in body(module.types, "Options")
    translator = body(module.types, "Translator")
    assert re.findall(r"translate\(text: ([^,]+), options\??: (\w+)\): Promise<(.+)>;", translator) == [
        ("string", "Several", "Translation[]"),
        ("string[]", "Several", "Translation[][]"),
        ("string", "Best", "Translation"),
        ("string[]", "Best", "Translation[]"),
    ]

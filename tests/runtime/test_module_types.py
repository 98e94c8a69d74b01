"""The TypeScript declarations of the JavaScript module match the module, checked in Node."""

import json
import re
import shutil
import subprocess

import pytest

from rnnsearch.export.engine_file import export
from rnnsearch.export.web_page import write_module
from tests.engines import require_native_code, require_web_engine
from tests.untrained import BAHDANAU, write_model

NAMES = """
import * as module from "./index.js";
const methods = Object.getOwnPropertyNames(module.Translator.prototype).filter((name) => name !== "constructor");
console.log(JSON.stringify([Object.keys(module), methods]));
"""
REQUESTS = """
import { readFileSync } from "node:fs";
import { load, RnnsearchError } from "./index.js";
const translator = await load(readFileSync("m.rnn"), { wasm: readFileSync("engine.wasm") });
const errors = [];
for (const request of [
  () => translator.translate(["the dog", "a cat"], { prefixes: "ei" }),
  () => translator.nBest("the dog", 1),
  () => translator.nBest(["the dog"], 1, 2, "e"),
]) {
  try {
    await request();
  } catch (error) {
    errors.push(error instanceof RnnsearchError && error.message);
  }
}
const [[best]] = translator.nBest(["the dog"], 1, 2, ["e"]);
const [translation] = await translator.translate("the dog", { prefixes: "e", nBest: 1 });
const fields = [translator, translation].map((object) => Object.keys(object));
console.log(JSON.stringify({ errors, same: best.text === translation.text, fields }));
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """Return a function that runs a script in the module's folder, next to an engine file, and parses its output."""
    if (node := shutil.which("node")) is None:
        pytest.skip("needs node")
    require_native_code()
    folder = tmp_path_factory.mktemp("module")
    write_module(folder, require_web_engine())
    export(write_model(folder / "model", BAHDANAU), folder / "m.rnn")

    def run(script):
        (folder / "script.mjs").write_text(script)
        process = subprocess.run([node, "script.mjs"], cwd=folder, capture_output=True, timeout=120, check=True)
        return json.loads(process.stdout)

    run.types = (folder / "index.d.ts").read_text(encoding="utf-8")
    return run


def body(types, name):
    """Return the declaration of a class or an interface."""
    return re.search(rf"(?:class|interface) {name} .*?\n}}", types, re.DOTALL).group()


def test_declared_names_match_module(module):
    exported, methods = module(NAMES)
    assert set(re.findall(r"^export (?:class|function) (\w+)", module.types, re.MULTILINE)) == set(exported)
    translator = body(module.types, "Translator")
    assert set(re.findall(r"^  (\w+)\(", translator, re.MULTILINE)) == set(methods)
    for name, fields in zip(("Translator", "Translation"), module(REQUESTS)["fields"], strict=True):
        declared = re.findall(r"^  (?:readonly )?(\w+):", body(module.types, name), re.MULTILINE)
        assert set(declared) == set(fields)


def test_arguments_must_be_lists(module):
    results = module(REQUESTS)
    prefixes = "prefixes must be a list with one prefix per text"
    assert results["errors"] == [prefixes, "texts must be a list", prefixes]
    assert results["same"]


def test_result_type_depends_on_n_best(module):
    assert "nBest" not in body(module.types, "Options")
    translator = body(module.types, "Translator")
    assert re.findall(r"translate\(text: ([^,]+), options\??: (\w+)\): Promise<(.+)>;", translator) == [
        ("string", "Several", "Translation[]"),
        ("string[]", "Several", "Translation[][]"),
        ("string", "Best", "Translation"),
        ("string[]", "Best", "Translation[]"),
    ]

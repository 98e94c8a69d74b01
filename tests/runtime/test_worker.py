"""The page's worker in Node: an engine that has failed is loaded anew."""

import json
import shutil
import subprocess

import pytest

from rnnsearch.export.web_page import export_page
from tests.engines import engine_for_browsers, require_native_code
from tests.untrained import BAHDANAU, write_model

SCRIPT = """
import { readFileSync } from "node:fs";
const Whole = WebAssembly.Instance;
let [memory, loaded] = [true, 0];
WebAssembly.Instance = class {
  constructor(module) {
    loaded += 1;
    const { exports } = new Whole(module, {});
    this.exports = { ...exports, room: (size) => (memory ? exports.room(size) : 0) };
  }
};
globalThis.fetch = async (url) => new Response(readFileSync(url));
let said;
globalThis.onmessage = null;
globalThis.postMessage = (message) => said(message);
await import("./static/worker.js");
const asked = (text) =>
  new Promise((answer) => {
    said = answer;
    onmessage({ data: { number: 1, what: "translate", asked: { model, text } } });
  });
const model = JSON.parse(readFileSync("models.json"))[0];
const first = await asked("the dog");
memory = false;
const failed = await asked("a cat");
memory = true;
const [again, known] = [await asked("a cat"), await asked("the dog")];
console.log(JSON.stringify({ first, failed, again, same: known.answer.text === first.answer.text, loaded }));
"""


def test_an_engine_that_has_failed_is_loaded_anew(tmp_path):
    if (node := shutil.which("node")) is None:
        pytest.skip("needs node")
    require_native_code()
    engine_for_browsers()
    export_page(write_model(tmp_path / "model", BAHDANAU), tmp_path / "site")
    (tmp_path / "site/package.json").write_text('{"type": "module"}')
    (tmp_path / "site/script.mjs").write_text(SCRIPT)
    ran = subprocess.run([node, "script.mjs"], cwd=tmp_path / "site", capture_output=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    found = json.loads(ran.stdout)
    assert "answer" in found["first"] and "failed: load the model again" in found["failed"]["fault"]
    assert "answer" in found["again"] and found["same"] and found["loaded"] == 2

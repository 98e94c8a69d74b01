"""The worker of the exported page, run in Node: it loads the model again after a failure of the engine."""

import json
import shutil
import subprocess

import pytest

from rnnsearch.export.web_page import export_page
from tests.engines import require_native_code, require_web_engine
from tests.untrained import BAHDANAU, write_model

SCRIPT = """
import { readFileSync } from "node:fs";
const Instance = WebAssembly.Instance;
let hasMemory = true;
let instances = 0;
WebAssembly.Instance = class {
  constructor(module) {
    instances += 1;
    const { exports } = new Instance(module, {});
    this.exports = { ...exports, allocate: (size) => (hasMemory ? exports.allocate(size) : 0) };
  }
};
globalThis.fetch = async (url) => new Response(readFileSync(url));
let onReply;
globalThis.onmessage = null;
globalThis.postMessage = (message) => onReply(message);
await import("./static/worker.js");
const [model] = JSON.parse(readFileSync("models.json"));
const translate = (text) =>
  new Promise((resolve) => {
    onReply = resolve;
    onmessage({ data: { id: 1, type: "translate", request: { model, text } } });
  });
const first = await translate("the dog");
hasMemory = false;
const failed = await translate("a cat");
hasMemory = true;
const retried = await translate("a cat");
const cached = await translate("the dog");
console.log(JSON.stringify({ first, failed, retried, cached, instances }));
"""


def test_worker_reloads_model_after_engine_failure(tmp_path):
    if (node := shutil.which("node")) is None:
        pytest.skip("needs node")
    require_native_code()
    require_web_engine()
    export_page(write_model(tmp_path / "model", BAHDANAU), tmp_path / "site")
    (tmp_path / "site/package.json").write_text('{"type": "module"}')
    (tmp_path / "site/script.mjs").write_text(SCRIPT)
    process = subprocess.run([node, "script.mjs"], cwd=tmp_path / "site", capture_output=True, timeout=120, check=False)
    assert process.returncode == 0, process.stderr.decode()
    replies = json.loads(process.stdout)
    assert "failed: load the model again" in replies["failed"]["error"]
    assert "result" in replies["retried"]
    assert replies["cached"]["result"]["text"] == replies["first"]["result"]["text"]
    assert replies["instances"] == 2

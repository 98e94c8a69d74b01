"""A model in a browser: what the page weighs, what it finds beside the runtime, and how fast.

Run it as `python benchmarks/web.py --model MODEL --source FILE`; it needs Chromium and Playwright. Speeds are of the
module in one tab, on one thread, the best of `--rounds`; those by processor time are of the tab's process and of the
runtime's, all rounds. A keystroke is from a letter typed into the page to its
translation there (greedy, as the page answers while one types), letter by letter through the first `--typed` sentences.
"""

from __future__ import annotations

import shutil
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import numpy as np
from harness import machine_line, parsed, parser, publish, table, timed
from playwright.sync_api import CDPSession, sync_playwright

from rnnsearch.export import KINDS
from rnnsearch.runtime import load
from rnnsearch.text.spans import words
from rnnsearch.web.folder import export_page

TRANSLATE = """async ([file, texts, beam, rounds]) => {
    const { load } = await import("./module/index.js");
    const begin = performance.now(), t = await load(file), loaded = performance.now() - begin;
    let best = Infinity, found;
    for (let round = 0; round <= rounds; round++) { // the first, in which the browser compiles, does not count
        const start = performance.now();
        found = await t.translate(texts, { beam });
        if (round) best = Math.min(best, performance.now() - start);
    }
    return [found.map((one) => one.text), best / 1000, loaded / 1000];
}"""
TYPE = """async (texts) => {
    const field = document.getElementById("source"), times = [];
    const last = () => performance.getEntriesByName("translated").at(-1)?.startTime ?? 0;
    for (const text of texts) {
        for (let n = 1; n <= text.length; n++) {
            if (!text.slice(0, n).trim()) continue;
            const start = performance.now();
            field.value = text.slice(0, n);
            field.dispatchEvent(new InputEvent("input"));
            while (last() < start) await new Promise((go) => setTimeout(go, 1));
            times.push(last() - start);
        }
    }
    return times;
}"""


class Quiet(SimpleHTTPRequestHandler):
    """Says nothing of requests."""

    def log_message(self, *given: Any) -> None:
        """Nothing."""


def processor_seconds(system: CDPSession) -> float:
    """What the browser's tabs have used up to now."""
    every = system.send("SystemInfo.getProcessInfo")["processInfo"]
    return sum(float(one["cpuTime"]) for one in every if one["type"] == "renderer")


def main() -> None:
    """Measure and print."""
    made = parser(__doc__)
    made.add_argument("--model", type=Path, required=True)
    made.add_argument("--source", type=Path, required=True, help="Source text, one sentence a line.")
    made.add_argument("--sentences", type=int, default=500)
    made.add_argument("--typed", type=int, default=20)
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--precisions", nargs="+", choices=KINDS, default=list(KINDS))
    given = parsed(made)
    texts = given.source.read_text(encoding="utf-8").split("\n")[: given.sentences]
    count, rows = sum(len(words(text)) for text in texts), []
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        system = browser.new_browser_cdp_session()
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
        Thread(target=server.serve_forever, daemon=True).start()
        for precision in given.precisions:
            site = Path(folder) / precision
            page_bytes, size = export_page(given.model, site, precision)
            engine = (site / "module/engine.wasm").stat().st_size
            file = next(site.glob("models/*.rnn"))
            alone = load(file)
            page = browser.new_page()
            page.set_default_timeout(0)
            page.goto(f"http://127.0.0.1:{server.server_port}/{precision}/")
            page.wait_for_function("() => document.getElementById('to').value")
            row = [precision, size / 1e6]
            for beam in (1, alone.search.beam):
                asked = [f"./models/{file.name}", texts, beam, given.rounds]
                used = processor_seconds(system)
                found, seconds, loaded = page.evaluate(TRANSLATE, asked)
                used = (processor_seconds(system) - used) / (given.rounds + 1)
                own, _, native = timed(partial(alone.translate, texts, beam))
                same = sum(a == b.text for a, b in zip(found, own, strict=True))
                row += [f"{100 * same / len(texts):.1f}", count / seconds, count / used, native / used]
            used = processor_seconds(system)
            times = page.evaluate(TYPE, texts[: given.typed])
            used = 1000 * (processor_seconds(system) - used) / len(times)
            rows.append([*row, np.percentile(times, 50), np.percentile(times, 95), used, loaded])
            page.close()
        server.shutdown()
        version = browser.version
        browser.close()
    head = (
        "precision | MB {:.1f} "
        "| greedy: same text, % {} | words/s {:,.0f} | a processor second {:,.0f} | x runtime {:.2f} "
        "| own beam: same text, % {} | words/s {:,.0f} | a processor second {:,.0f} | x runtime {:.2f} "
        "| keystroke, median, ms {:.1f} | 95th percentile, ms {:.1f} | of processor, ms {:.1f} | load, s {:.2f}"
    )
    weights = f"engine {engine / 1e3:.0f} kB; page without model {page_bytes / 1e3:.0f} kB; Chromium {version}"
    publish([machine_line(), f"{len(texts):,} sentences; {weights}", "", *table(head, rows)], given.output)


if __name__ == "__main__":
    main()

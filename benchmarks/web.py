"""Translation in a browser: size of the page, agreement with the runtime, and speed.

Run it as `python benchmarks/web.py --model MODEL --source FILE`; it needs Chromium and Playwright. Speeds are those of
the module in one tab with one thread, the best of `--rounds`; speeds per CPU second include all rounds, for the tab's
process and for the runtime's. Keystroke latency is the time from a letter typed into the page to the translation shown
there (greedy, as during typing), letter by letter through the first `--typed` sentences.
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
from harness import argument_parser, machine_line, parse_arguments, publish, table, time_call
from playwright.sync_api import CDPSession, sync_playwright

from rnnsearch.export.engine_file import MATRIX_TYPES
from rnnsearch.export.web_page import export_page
from rnnsearch.runtime import load
from rnnsearch.text.alignments import words

TRANSLATE = """async ([file, texts, beam, rounds]) => {
    const { load } = await import("./module/index.js");
    const begin = performance.now(), t = await load(file), loaded = performance.now() - begin;
    let best = Infinity, translations;
    for (let round = 0; round <= rounds; round++) { // round 0, in which the browser compiles, is not timed
        const start = performance.now();
        translations = await t.translate(texts, { beam });
        if (round) best = Math.min(best, performance.now() - start);
    }
    return [translations.map((translation) => translation.text), best / 1000, loaded / 1000];
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


class QuietHandler(SimpleHTTPRequestHandler):
    """Request handler without a log."""

    def log_message(self, *arguments: Any) -> None:
        """Do nothing."""


def renderer_cpu_seconds(session: CDPSession) -> float:
    """Return the CPU time that the browser's tabs have used so far."""
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    return sum(float(process["cpuTime"]) for process in processes if process["type"] == "renderer")


def main() -> None:
    """Measure and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument("--source", type=Path, required=True, help="source text, one sentence per line")
    parser.add_argument("--sentences", type=int, default=500, help="sentences to translate")
    parser.add_argument("--typed", type=int, default=20, help="sentences to type")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of which the best counts")
    parser.add_argument("--precisions", nargs="+", choices=MATRIX_TYPES, default=list(MATRIX_TYPES))
    args = parse_arguments(parser)
    texts = args.source.read_text(encoding="utf-8").split("\n")[: args.sentences]
    num_words = sum(len(words(text)) for text in texts)
    rows = []
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        session = browser.new_browser_cdp_session()
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=folder))
        Thread(target=server.serve_forever, daemon=True).start()
        for precision in args.precisions:
            site = Path(folder) / precision
            page_bytes, size = export_page(args.model, site, precision)
            engine_bytes = (site / "module/engine.wasm").stat().st_size
            file = next(site.glob("models/*.rnn"))
            runtime = load(file)
            page = browser.new_page()
            page.set_default_timeout(0)
            page.goto(f"http://127.0.0.1:{server.server_port}/{precision}/")
            page.wait_for_function("() => document.getElementById('to').value")
            row = [precision, size / 1e6]
            for beam in (1, runtime.search.beam):
                arguments = [f"./models/{file.name}", texts, beam, args.rounds]
                cpu_start = renderer_cpu_seconds(session)
                translations, seconds, load_seconds = page.evaluate(TRANSLATE, arguments)
                cpu = (renderer_cpu_seconds(session) - cpu_start) / (args.rounds + 1)
                expected, _, runtime_cpu = time_call(partial(runtime.translate, texts, beam))
                same = sum(a == b.text for a, b in zip(translations, expected, strict=True))
                row += [f"{100 * same / len(texts):.1f}", num_words / seconds, num_words / cpu, runtime_cpu / cpu]
            cpu_start = renderer_cpu_seconds(session)
            times = page.evaluate(TYPE, texts[: args.typed])
            cpu_ms = 1000 * (renderer_cpu_seconds(session) - cpu_start) / len(times)
            rows.append([*row, np.percentile(times, 50), np.percentile(times, 95), cpu_ms, load_seconds])
            page.close()
        server.shutdown()
        version = browser.version
        browser.close()
    head = (
        "precision | MB {:.1f} "
        "| greedy: same text, % {} | words/s {:,.0f} | words per CPU second {:,.0f} | x runtime {:.2f} "
        "| default beam: same text, % {} | words/s {:,.0f} | words per CPU second {:,.0f} | x runtime {:.2f} "
        "| keystroke, median, ms {:.1f} | 95th percentile, ms {:.1f} | CPU time, ms {:.1f} | load, s {:.2f}"
    )
    sizes = f"engine {engine_bytes / 1e3:.0f} kB; page without model {page_bytes / 1e3:.0f} kB; Chromium {version}"
    publish([machine_line(), f"{len(texts):,} sentences; {sizes}", "", *table(head, rows)], args.output)


if __name__ == "__main__":
    main()

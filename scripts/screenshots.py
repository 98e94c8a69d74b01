"""Take screenshots of the web page for the documentation.

`scripts/screenshots.py runs/demo-en-de` writes docs/images/page-*.png from a server of the model that `rnnsearch demo`
trains, after `rnnsearch calibrate` has calibrated it. It needs the extra `dev` (Playwright) and Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

OUT = Path(__file__).parents[1] / "docs" / "images"
TEXT = "The children are playing in the garden. Our neighbour grows tomatoes behind the house."
MAX_BYTES = 200_000  # of a picture


@contextmanager
def running_server(model: Path) -> Iterator[str]:
    """Run a server of the model and yield its address."""
    with socket.socket() as free_port:
        free_port.bind(("127.0.0.1", 0))
        port = free_port.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "rnnsearch", "serve", str(model), "--port", str(port), "--log-level", "error"]
    process = subprocess.Popen(command)
    try:
        while not responds(f"{address}/health"):
            if process.poll() is not None:
                sys.exit(f"the server exited with status {process.returncode}")
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait()


def responds(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def open_page(browser: Browser, address: str, text: str, width: int, height: int, **options: Any) -> Page:
    """Open the page, enter a text and wait for its translation."""
    size = {"width": width, "height": height}
    page = browser.new_context(viewport=size, device_scale_factor=1.5, reduced_motion="reduce", **options).new_page()
    page.goto(address)
    page.wait_for_function("() => document.getElementById('to').value")
    page.fill("#source", text)
    page.wait_for_function("() => document.querySelector('#target .word') && document.getElementById('busy').hidden")
    return page


def save(page: Page, name: str) -> None:
    path = OUT / f"page-{name}.png"
    with Image.open(BytesIO(page.screenshot())) as picture:
        # The page has few colours: 256 are enough and need a third of the bytes.
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    if size > MAX_BYTES:
        sys.exit(f"{path.name} must have at most {MAX_BYTES:,} bytes; got {size:,}")


def take_screenshots(browser: Browser, address: str, text: str, word: int) -> None:
    page = open_page(browser, address, text, 1180, 600, color_scheme="light")
    page.locator("#target .word").nth(word).hover()
    save(page, "light")

    page = open_page(browser, address, text, 1180, 860, color_scheme="dark")
    page.click("#show-confidence")
    page.click("#show-alternatives")
    page.locator("#alternatives-list .choice").nth(1).wait_for()
    page.locator("#target .word").nth(word).click()
    page.locator("#word-menu .choice").first.wait_for()
    save(page, "dark")

    page = open_page(browser, address, text, 360, 740, color_scheme="light", has_touch=True)
    page.tap("#show-writer")
    page.wait_for_selector(".ghost-next")
    for _ in range(3):
        page.keyboard.press("Tab")
    with page.expect_response("**/v1/complete"):
        page.keyboard.type(" ")
    page.wait_for_selector("#completions .choice")
    save(page, "phone")

    page = open_page(browser, address, text, 1180, 760, color_scheme="light")
    page.click("#show-map")
    page.locator(f'.map-cell[data-row="{word}"][data-column="{word}"]').hover()
    save(page, "heatmap")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--text", default=TEXT, help="text to translate")
    parser.add_argument("--word", type=int, default=2, help="index of the open_page word under the pointer, from 0")
    args = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("Chromium must be installed: apt-get install chromium")
    OUT.mkdir(parents=True, exist_ok=True)
    with running_server(args.model) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        take_screenshots(browser, address, args.text, args.word)
        browser.close()


if __name__ == "__main__":
    main()

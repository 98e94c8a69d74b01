"""Errors are reported in one sentence, and the page recovers by itself where possible."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.page.responses import translate_response


@pytest.fixture
def open_with_handler(open_app: Any) -> Callable[..., Any]:
    """Return a function that opens the page with a route handler for /v1/translate and enters a sentence."""

    def open_(handler: Callable[[Any], None]) -> Any:
        app = open_app(routes={"/v1/translate": handler})
        app.errors_expected = True
        app.page.fill("#source", app.sentence)
        return app

    return open_


def test_error_message_is_shown_as_sentence(open_with_handler):
    error = {"error": "the text must have at most 50,000 characters; got 60,000"}
    app = open_with_handler(lambda route: route.fulfill(status=413, json=error))
    assert app.banner() == "The text must have at most 50,000 characters; got 60,000."
    assert app.page.get_attribute("#banner", "role") == "alert"


def test_rejected_text_clears_previous_translation(open_app):
    app = open_app()
    app.errors_expected = True
    app.page.fill("#source", app.sentence)
    app.wait_for_translation(app.translation)
    error = {"error": "the text must have at most 50,000 characters; got 60,000"}
    app.page.route("**/v1/translate", lambda route: route.fulfill(status=413, json=error))
    app.page.fill("#source", "another text")
    app.page.wait_for_selector("#banner", state="visible")
    assert app.page.text_content("#target") == ""
    assert not app.is_visible("#copy")
    assert not app.is_visible("#toolbar")


def test_page_retries_when_server_is_down(open_app):
    app = open_app()
    app.errors_expected = True
    app.page.context.set_offline(True)
    app.page.fill("#source", app.sentence)
    assert app.banner() == "The server is not responding. Retrying…"
    assert app.page.input_value("#source") == app.sentence
    app.page.context.set_offline(False)
    app.page.wait_for_selector("#banner", state="hidden")
    app.wait_for_translation(app.translation)


def test_page_retries_when_server_is_busy(open_with_handler):
    rejected: list[str] = []

    def busy_once(route: Any) -> None:
        if rejected:
            route.continue_()
        else:
            rejected.append(route.request.url)
            route.fulfill(status=429, headers={"Retry-After": "1"}, json={"error": "the queue is full"})

    app = open_with_handler(busy_once)
    assert app.banner() == "The queue is full. Retrying in 1 s."
    app.wait_for_translation(app.translation)
    assert not app.is_visible("#banner")


def test_page_asks_for_api_key_and_does_not_store_it(open_with_handler):
    def require_key(route: Any) -> None:
        if route.request.headers.get("x-api-key") == "sesame":
            route.continue_()
        else:
            route.fulfill(status=403, json={"error": "an API key must be given"})

    app = open_with_handler(require_key)
    assert app.banner() == "This server requires a key."
    form = app.page.inner_text("#key-form")
    for explained in ("from the person who runs the server", "not stored", "Without a key nothing is translated"):
        assert explained in form
    app.page.fill("#key", "wrong")
    app.page.keyboard.press("Enter")
    app.page.wait_for_function("() => document.getElementById('banner').textContent.includes('does not accept')")
    app.page.fill("#key", "sesame")
    app.page.keyboard.press("Enter")
    app.wait_for_translation(app.translation)
    assert not app.is_visible("#key-form")
    stored = app.page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert "sesame" not in stored


def test_slow_response_is_preceded_by_streamed_preview(open_app):
    held: list[Any] = []

    def hold_search(route: Any) -> None:
        if route.request.post_data_json.get("stream"):
            route.continue_()
        else:
            held.append(route)

    app = open_app(routes={"/v1/translate": hold_search})
    app.page.fill("#source", app.sentence)
    app.wait_for_translation(app.translation)
    assert app.is_visible("#busy")
    assert not app.is_visible("#toolbar")
    held[0].continue_()
    assert app.wait_until_translated() == app.translation
    assert app.is_visible("#toolbar")


def test_stale_translation_is_dimmed_and_cannot_be_copied(open_app):
    """It stays stale from the first change of the text, whatever the user does with it."""
    app = open_app()
    app.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    app.translate(app.sentence)
    app.word("malt").click()
    app.page.locator("#word-menu .choice").first.click()
    app.page.wait_for_selector("#undo", state="visible")
    app.page.evaluate("navigator.clipboard.writeText('before')")
    app.page.route("**/v1/translate", lambda _: None)  # no response
    app.page.evaluate(
        "(text) => { source.value = text; source.dispatchEvent(new InputEvent('input', {bubbles: true})); }",
        app.other,
    )
    assert app.page.locator("#target.is-stale").count() == 1
    app.page.click("#undo")
    assert app.target_text == app.translation
    assert app.page.locator("#target.is-stale").count() == 1
    assert app.unavailable_reason("#copy") == "Translation in progress"
    assert app.unavailable_reason("#show-map") == "Translation in progress"
    assert app.page.evaluate("navigator.clipboard.readText()") == "before"


def test_changing_model_makes_translation_stale(open_app):
    row = {"source": "en", "target": "de", "source_name": "English", "target_name": "German", "attention": True,
           "score": None, "loaded": True}  # fmt: skip
    models = {"models": [{"name": "one", **row}, {"name": "two", **row}]}

    def respond_for_first_model(route: Any) -> None:
        if route.request.post_data_json["model"] == "one":
            route.fulfill(json=translate_response(["house"], ["Haus"]))

    app = open_app(routes={"/v1/models": models, "/v1/translate": respond_for_first_model})
    assert app.translate("house") == "Haus"
    app.page.select_option("#model", "two")
    assert app.page.locator("#target.is-stale").count() == 1
    assert app.unavailable_reason("#copy") == "Translation in progress"


def test_file_upload_before_models_are_loaded_is_reported(open_with_handler):
    app = open_with_handler(lambda route: route.continue_())
    app.page.route("**/v1/models", lambda _: None)  # no response
    app.page.reload()
    app.page.click("#tab-files")
    app.page.set_input_files("#file", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"x"})
    app.page.wait_for_selector(".job .is-error")
    assert app.page.inner_text(".job .is-error").startswith("Not uploaded, because the languages are still loading.")
    assert app.unavailable_reason("#swap") == "Languages are still loading"

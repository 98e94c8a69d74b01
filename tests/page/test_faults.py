"""What is wrong is said in one sentence, and what can heal heals by itself."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.page.answers import answer


@pytest.fixture
def faulty(open_page: Any) -> Callable[..., Any]:
    """Opens the page with an answer of its own in place of the server's translations, and types a sentence."""

    def typed(answer: Callable[[Any], None]) -> Any:
        sheet = open_page(routes={"/v1/translate": answer})
        sheet.faults_expected = True
        sheet.page.fill("#source", sheet.sentence)
        return sheet

    return typed


def test_a_refusal_is_one_sentence(faulty):
    said = "the text must have at most 50,000 characters; got 60,000"
    sheet = faulty(lambda route: route.fulfill(status=413, json={"error": said}))
    assert sheet.banner() == "The text must have at most 50,000 characters; got 60,000."
    assert sheet.page.get_attribute("#banner", "role") == "alert"


def test_a_refused_text_has_no_other_text_s_translation_beside_it(open_page):
    sheet = open_page()
    sheet.faults_expected = True
    sheet.page.fill("#source", sheet.sentence)
    sheet.becomes(sheet.translation)
    refusal = {"error": "the text must have at most 50,000 characters; got 60,000"}
    sheet.page.route("**/v1/translate", lambda route: route.fulfill(status=413, json=refusal))
    sheet.page.fill("#source", "another text")
    sheet.page.wait_for_selector("#banner", state="visible")
    assert sheet.page.text_content("#target") == ""
    assert not sheet.shows("#copy")
    assert not sheet.shows("#tools")


def test_a_server_that_is_down_is_waited_for(open_page):
    sheet = open_page()
    sheet.faults_expected = True
    sheet.page.context.set_offline(True)
    sheet.page.fill("#source", sheet.sentence)
    assert sheet.banner() == "The server does not answer. It is asked again until it does."
    assert sheet.page.input_value("#source") == sheet.sentence
    sheet.page.context.set_offline(False)
    sheet.page.wait_for_selector("#banner", state="hidden")
    sheet.becomes(sheet.translation)


def test_a_busy_server_is_asked_again(faulty):
    refused: list[str] = []

    def busy_once(route: Any) -> None:
        if refused:
            route.continue_()
        else:
            refused.append(route.request.url)
            route.fulfill(status=429, headers={"Retry-After": "1"}, json={"error": "the queue is full"})

    sheet = faulty(busy_once)
    assert sheet.banner() == "The queue is full. Trying again in 1 s."
    sheet.becomes(sheet.translation)
    assert not sheet.shows("#banner")


def test_a_server_with_keys_is_given_one(faulty):
    def guarded(route: Any) -> None:
        if route.request.headers.get("x-api-key") == "sesame":
            route.continue_()
        else:
            route.fulfill(status=403, json={"error": "an API key must be given"})

    sheet = faulty(guarded)
    assert sheet.banner() == "An API key must be given."
    sheet.page.fill("#key", "sesame")
    sheet.page.keyboard.press("Enter")
    sheet.becomes(sheet.translation)
    assert not sheet.shows("#key-form")
    stored = sheet.page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert "sesame" not in stored


def test_a_slow_answer_is_preceded_by_a_quick_one(open_page):
    """The streamed translation is shown while the searched one is awaited."""
    held: list[Any] = []

    def hold_search(route: Any) -> None:
        if route.request.post_data_json.get("stream"):
            route.continue_()
        else:
            held.append(route)

    sheet = open_page(routes={"/v1/translate": hold_search})
    sheet.page.fill("#source", sheet.sentence)
    sheet.becomes(sheet.translation)
    assert sheet.shows("#busy")
    assert not sheet.shows("#tools")
    held[0].continue_()
    assert sheet.settled() == sheet.translation
    assert sheet.shows("#tools")


def test_an_outdated_translation_is_grey_and_copy_waits(open_page):
    """From the first other letter on, whatever is done with the old translation meanwhile."""
    sheet = open_page()
    sheet.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    sheet.translate(sheet.sentence)
    sheet.word("malt").click()
    sheet.page.locator("#word-menu .choice").first.click()
    sheet.page.wait_for_selector("#undo", state="visible")
    sheet.page.evaluate("navigator.clipboard.writeText('before')")
    sheet.page.route("**/v1/translate", lambda _: None)  # no answer comes
    sheet.page.evaluate(
        "(text) => { source.value = text; source.dispatchEvent(new InputEvent('input', {bubbles: true})); }",
        sheet.other,
    )
    assert sheet.page.locator("#target.is-stale").count() == 1
    sheet.page.click("#undo")
    assert sheet.target == sheet.translation
    assert sheet.page.locator("#target.is-stale").count() == 1
    assert sheet.why_not("#copy") == "The translation is not ready yet"
    assert sheet.why_not("#show-map") == "The translation is not ready yet"
    assert sheet.page.evaluate("navigator.clipboard.readText()") == "before"


def test_another_model_makes_the_translation_outdated(open_page):
    row = {"source": "en", "target": "de", "source_name": "English", "target_name": "German", "attention": True,
           "score": None, "loaded": True}  # fmt: skip
    models = {"models": [{"name": "one", **row}, {"name": "two", **row}]}

    def one_answers(route: Any) -> None:
        if route.request.post_data_json["model"] == "one":
            route.fulfill(json=answer(["house"], ["Haus"]))

    sheet = open_page(routes={"/v1/models": models, "/v1/translate": one_answers})
    assert sheet.translate("house") == "Haus"
    sheet.page.select_option("#model", "two")
    assert sheet.page.locator("#target.is-stale").count() == 1
    assert sheet.why_not("#copy") == "The translation is not ready yet"


def test_a_file_before_there_is_a_model_is_not_dropped_in_silence(faulty):
    sheet = faulty(lambda route: route.continue_())
    sheet.page.route("**/v1/models", lambda _: None)  # no answer comes
    sheet.page.reload()
    sheet.page.click("#tab-files")
    sheet.page.set_input_files("#file", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"x"})
    sheet.page.wait_for_selector("#toast", state="visible")
    assert sheet.page.inner_text("#toast").startswith("a.txt was not sent: ")
    assert sheet.why_not("#swap") == "The server has not said yet what it translates"

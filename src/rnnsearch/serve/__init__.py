"""The HTTP server (`rnnsearch serve`): the translation page, the detailed API `/v1` and the protocols of other servers.

The path of a translation request:

1. `server.Server` and `server.Connection` (uvicorn) read it; `observability.RequestObserver` counts, times and logs it.
2. `admission.AdmissionControl` rejects it if its headers or its size are not acceptable.
3. A route of a protocol (`v1`, `libretranslate`, `apertium`, `opus_cat`, `deepl`) validates the request and passes it
   to `service.Service`, which checks the key and the limits.
4. `translation_service.TranslationService` detects languages, chooses models and separates markup.
5. `texts.translate_texts` splits the texts into sentences; `served_model.ServedModel.translate` tokenizes them once.
6. `batching.Batcher.submit` queues one `TranslationJob` per sentence. `Batcher._take_batch` makes a batch from the jobs
   of all requests, and `served_model.ServedModel._translate_batch` translates it in a worker thread.
7. `texts.translate_texts` joins the sentences to texts again, and the route writes the response.

Only the event loop's thread changes state of the server; worker threads translate and return results. See
docs/serving.md, docs/threats.md and docs/decisions/0019-serving.md; the tests are in `tests/serve`.
"""

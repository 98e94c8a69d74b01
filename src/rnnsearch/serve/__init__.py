"""The HTTP server (`rnnsearch serve`): the translation page, LibreTranslate's API and the detailed API `/v1`.

The path of a translation request:

1. `server.Server` and `server.Connection` (uvicorn) read it; `observability.RequestObserver` counts, times and logs it.
2. `admission.AdmissionControl` rejects it if its headers or its size are not acceptable.
3. A route of `libretranslate` or `v1` validates the body and asks `service.Service` for the model.
4. `texts.translate_texts` splits the texts into sentences; `registry.ServedModel.translate` tokenizes them once.
5. `batching.Batcher.submit` queues one `Job` per sentence. `Batcher._take_batch` makes a batch from the jobs of all
   requests, and `registry.ServedModel._translate_batch` translates it in a worker thread.
6. The route joins the sentences to texts again and writes the response.

Only the event loop's thread changes state of the server; worker threads translate and return results. See
docs/serving.md, docs/threats.md and docs/decisions/0019-serving.md; the tests are in `tests/serve`.
"""

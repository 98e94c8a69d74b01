// The back end of the page as served by `rnnsearch serve`: the server's HTTP API.
//
// The exported page has its own backend.js, which runs the engine in a worker. A back end exports
//   TYPING_PAUSE                                  milliseconds between the last keystroke and a request
//   listModels()                                  the available models
//   translate(request, signal)                    a translation with its alternatives
//   translateLive(request, signal, {onPartial, onDraft})
//                                                 like translate, but reports earlier results: a text that
//                                                 is still growing, or a complete but less exact translation
//   complete(request, signal)                     completions of a prefix
//   alternatives(request, signal)                 other words for one word of a translation
//   simultaneous(request, signal)                 sentences of a text that is being typed, as far as their
//                                                 translations are final; for models with `simultaneous`
//   isHealthy(), setApiKey(key)
//   startExtras()                                 features that only this back end has
// Requests and responses have the fields of the HTTP API. All errors are ApiErrors, or AbortErrors.

export * from "./server-api.js";
export { start as startExtras } from "./files.js";

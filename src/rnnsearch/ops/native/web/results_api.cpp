// Exported functions for JavaScript: memory of the engine, and the results of the last search
// (request.h).
#include "request.h"

WASM_EXPORT(allocate) void* allocate(uint32_t bytes) { return malloc(bytes); }
WASM_EXPORT(release) void release(void* memory) { free(memory); }

WASM_EXPORT(tokens) const int64_t* tokens() { return result.tokens.data; }
WASM_EXPORT(scores) const float* scores() { return result.scores.data; }
WASM_EXPORT(alphas) const float* alphas() { return result.alphas.data; }
WASM_EXPORT(lengths) const int64_t* lengths() { return result.length.data; }
WASM_EXPORT(finished) const int64_t* finished() { return result.finished.data; }

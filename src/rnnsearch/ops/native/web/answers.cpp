// What scripts ask of the engine's memory, and of the last search.
#include "request.h"

FOR_SCRIPTS(room) void* room(uint32_t bytes) { return malloc(bytes); }
FOR_SCRIPTS(release) void release(void* given) { free(given); }

FOR_SCRIPTS(tokens) const int64_t* tokens() { return answer.tokens.data; }
FOR_SCRIPTS(scores) const float* scores() { return answer.scores.data; }
FOR_SCRIPTS(alphas) const float* alphas() { return answer.alphas.data; }
FOR_SCRIPTS(lengths) const int64_t* lengths() { return answer.length.data; }
FOR_SCRIPTS(finished) const int64_t* finished() { return answer.finished.data; }

// What the functions of search.cpp are given.
#pragma once

#include "matrix.h"
#include "recurrence.h"

// A decoder as search needs it. PRODUCT's `weight` is a Matrix here.
struct Decoder {
    int64_t x_size, sums_size, values_size, reads_size;
    int64_t key, annotation, heads;
    int64_t parts;
    const Part* part;
    const float *bias, *vector;
    float scale;
    int64_t reach;
    float spread;
    int64_t states;
    const int64_t* state;  // where each value that is handed on begins, and its size
    int64_t state_size;    // of all together, and of t behind them; a row of states has what features remember, too
    const Part* readout;   // a READ of what the output layer reads
    const float* table;    // the words' share of the sums [V, x_size]; null: it is given, or made of what follows
    Features features;
    const Matrix* from_word;  // W and b of the words' share [x_size, E]; null: it is given
    const float* embeddings;  // [V, E]; null: bytes times scales
    const int8_t* bytes;      // [V, E]
    const float* scales;      // [V]
};

struct Batch {
    const float *keys, *annotations;  // [B, J, A], [B, J, H]
    const uint8_t* mask;              // [B, J]
    const float* centres;             // [B, C], of a window that knows them: after C positions they stay; null without
    const float* prepared;            // [B, J, features.prepared]
    int64_t width, centre_count;      // J, C
};

// A recurrence as a short program. A decoder's or an encoder's step is a list of parts (reads, products, gates, attention),
// which a thread takes some sentences through, position by position, and back.
//
// Three rows of numbers belong to a position: `sums` before their activations (fp32, forgotten when the step is
// done); `values`, what the parts make of them (fp32, kept); `reads`, what products read of the values (in the products'
// type, kept for the weights' gradients). A part names its ranges by where they begin.
#pragma once

#include "source_features.h"
#include "matrix.h"
#include "team.h"

enum What : int64_t { INPUT, READ, PRODUCT, SIGMOID, TANH, GRU, LSTM, ADDITIVE, DOT, ADD, NORM, CENTRE, MAXOUT, CLOCK, BEND, SSRU };

struct Part {
    int64_t what;
    int64_t size;
    int64_t at[8];  // where its ranges begin; -1: it has none. See parts.h
    int64_t before;  // bit k: the values at[k] are of the position before
    // PRODUCT: [size, at[2]]. NORM: gain and bias [2, size]. CENTRE, CLOCK: [size]. ADDITIVE: its
    // features' own (source_features.h). All in fp32; in search, PRODUCT's is a Matrix that is laid out
    const void* weight;
    const float* mask;   // READ, ADD: a factor (dropout), [N, positions, size]; null without
    int64_t mask_row, mask_position;
    float* gradient;     // of `weight`, but of PRODUCT
};

// What comes from outside to the values at `at` of each position: d [N, I, size].
struct Outside {
    const float* d;
    int64_t at, size, before;
};

struct Recurrence {
    int64_t rows, positions, backward;  // N, I, and whether the last position comes first
    int64_t x_size, sums_size, values_size, reads_size;
    int64_t source, key, annotation, heads;  // J, A, H, M
    int64_t parts;
    const Part* part;
    const float* bias;     // [sums_size]: what each sum begins with
    const void* x;         // [N, I, x_size], the inputs' share
    const uint8_t* real;   // [N, I]: where 0 the state stays as it is; null: all are real
    const void *keys, *annotations;  // [N, J, A], [N, J, H]
    const uint8_t* mask;   // [N, J], source positions
    const float* vector;   // v_a [A]
    float scale;           // of DOT
    int64_t reach;         // of a window; -1: all positions
    float spread;          // sigma of its weights' factor; 0: none
    const float* centres;  // [N, I], of a window that knows them beforehand
    Features features;     // of an additive score of one head
    const float* prepared;  // [N, J, features.prepared]
    float* memory;         // [N, I + 1, J, features.memory], 0 before the first position
    float* values;         // [N, I + 1, values_size]: the state before the first position, then (backward: behind) all
    void* reads;           // [N, I, reads_size]
    float* alphas;         // [N, I, M, J]
    // Backward alone.
    const Outside* outside;
    int64_t outsides;
    const float* d_alphas;   // [N, I, M, J]; null: nothing
    void *d_sums, *d_contexts, *d_annotations;  // [N, I, sums_size], [N, I, H], [N, J, H] in the products' type
    float *d_keys, *d_vector, *d_first;        // [N, J, A], [A], [N, values_size]: of the state before the first
    float* d_prepared;
};

// A recurrence as a short program: the step of an encoder or decoder is a list of operations
// (reads, products, gates, attention), which a thread runs for some sentences, position by
// position, forward and backward.
//
// Each position has three rows of numbers. `sums`: pre-activations (fp32, discarded after the
// step). `values`: results of the operations (fp32, stored). `reads`: inputs of matrix products (in
// the products' type, stored for the gradients of the weights). An operation addresses its operands
// by offsets into these rows.
//
// In shapes: N sentences, I positions, J source positions, A key size, H annotation size, M heads.
#pragma once

#include "packed_matrix.h"
#include "source_features.h"
#include "thread_team.h"

/// Types of operations, which ops.h defines. Mirrored in Python and JavaScript; the numbers are
/// stored in engine files.
// clang-format off
enum OpType : int64_t {
    INPUT, READ, PRODUCT, SIGMOID, TANH, GRU, LSTM, ADDITIVE, DOT, ADD, NORM, CENTRE, MAXOUT,
    LOG_POSITION, TANH_VALUES, SSRU
};
// clang-format on

/// One operation of a step. Mirrored by a ctypes structure.
struct Op {
    int64_t type;
    int64_t size;       // elements per operand
    int64_t offset[8];  // of its operands, -1 for those that are absent; see ops.h
    int64_t previous;   // bit k: operand k is in the values of the previous position
    // PRODUCT: [size, offset[2]], in search a PackedMatrix. NORM: gain and bias [2, size]. CENTRE,
    // LOG_POSITION: [size]. ADDITIVE: parameters of the features (source_features.h). All in fp32.
    const void* weight;
    const float* mask;  // READ, ADD: factor (dropout) [N, positions, size]; null if there is none
    int64_t mask_row_stride, mask_position_stride;
    float* d_weight;  // gradient of `weight`, except for PRODUCT
    int64_t source;   // ADDITIVE, DOT, CENTRE: index of the attention, in search
};

/// Gradient of an output of the recurrence: d [N, I, size] of the values from `offset` on.
struct OutputGradient {
    const float* d;
    int64_t offset, size;
    int64_t previous;  // 1 if the output is a value of the previous position
};

/// Arguments of a recurrence and its backward pass. Mirrored by a ctypes structure.
struct Recurrence {
    int64_t rows, positions, reversed;  // N, I, and 1 to run from the last position to the first
    int64_t x_size, sums_size, values_size, reads_size;
    int64_t source_length, key_size, annotation_size, heads;  // J, A, H, M
    int64_t num_ops;
    const Op* ops;
    const float* bias;      // [sums_size], initial value of the sums
    const void* x;          // [N, I, x_size], projected inputs
    const uint8_t* active;  // [N, I]; states are unchanged where this is 0; null: 1 everywhere
    const void *keys, *annotations;  // [N, J, A], [N, J, H]
    const uint8_t* source_mask;      // [N, J]
    const float* score_vector;       // v_a [A]
    float score_scale;               // of DOT
    int64_t window_radius;           // -1: attend to all positions
    float window_sigma;              // of the Gaussian factor of the weights; 0: none
    const float* window_centres;     // [N, I], if they do not depend on the state
    Features features;               // of an additive score with one head
    const float* prepared;           // [N, J, features.prepared_size]
    float* feature_states;  // [N, I + 1, J, features.state_size], 0 before the first position
    float* values;          // [N, I + 1, values_size], the initial state and all positions; the
                            // initial state is first, or last if reversed
    void* reads;            // [N, I, reads_size]
    float* alphas;          // [N, I, M, J]
    // Backward only:
    const OutputGradient* output_gradients;
    int64_t num_output_gradients;
    const float* d_alphas;  // [N, I, M, J]; may be null
    // In the products' type: [N, I, sums_size], [N, I, H], [N, J, H].
    void *d_sums, *d_contexts, *d_annotations;
    float *d_keys, *d_vector, *d_initial;  // [N, J, A], [A], [N, values_size] of the initial state
    float* d_prepared;                     // [N, J, features.prepared_size]
};

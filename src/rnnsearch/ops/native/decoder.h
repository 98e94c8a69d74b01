// Arguments of the functions of search.cpp. Mirrored by ctypes structures.
//
// In shapes: B sentences, J positions of a source, A key size, H annotation size, E embedding size,
// V target vocabulary.
#pragma once

#include "packed_matrix.h"
#include "recurrence.h"

/// The attention of a step to one source.
struct Attention {
    int64_t key_size, annotation_size, heads;  // A, H
    const float* score_vector;                 // v_a [A]
    float score_scale;
    int64_t window_radius;  // -1: attend to all positions
    float window_sigma;
    Features features;
};

/// The step of a decoder, or of an encoder's cell, for search: the weight of each PRODUCT is a
/// PackedMatrix.
struct Decoder {
    int64_t x_size, sums_size, values_size, reads_size;
    int64_t num_attentions;  // 0: the step does not attend
    const Attention* attentions;
    int64_t num_ops;
    const Op* ops;
    const float* bias;  // [sums_size]
    int64_t num_states;
    // [num_states, 2], offset and size of the values that are carried to the next position.
    const int64_t* states;
    // Of all states and the position t behind them. The feature states of each attention, of J
    // positions, come before.
    int64_t state_size;
    const Op* readout;        // a READ of the output layer's inputs
    const float* word_table;  // [V, x_size], projected target words; null: see word_projection
    // W and b that project a target word [x_size, E]; null: projected words are given per call.
    const PackedMatrix* word_projection;
    const float* embeddings;        // [V, E]; null: int8_embeddings times embedding_scales
    const int8_t* int8_embeddings;  // [V, E]
    const float* embedding_scales;  // [V]
};

/// The source sentences of a batch, as one attention of a decoder reads them; functions of
/// search.cpp take one per attention.
struct SourceBatch {
    const float *keys, *annotations;  // [B, J, A], [B, J, H]
    const uint8_t* mask;              // [B, J]; with no position set, weights and context are 0
    // [B, num_centres], constant from the last one on; null: computed by the step.
    const float* window_centres;
    const float* prepared;        // [B, J, features.prepared_size]
    int64_t length, num_centres;  // J
};

// Arguments of the functions of rnnsearch.cpp. Mirrored by ctypes structures.
//
// In shapes: B sentences, J source positions, E embedding size, D state size, A key size, H
// annotation size, O readout size (before pooling), V target vocabulary. D, A and H fill whole
// vectors.
#pragma once

#include "packed_matrix.h"

struct GRUWeights {
    PackedMatrix input;      // W and b of z, r and candidate [3 D, E]
    PackedMatrix gates;      // U_z above U_r [2 D, D]
    PackedMatrix candidate;  // U [D, D]
};

struct EncoderWeights {
    GRUWeights directions[2];  // forward, backward
    int64_t size;              // D of one direction
};

struct DecoderWeights {
    // W_a, U_z, U_r and the readout's weight, with the readout's bias [A + 2 D + O, D].
    PackedMatrix from_state;
    PackedMatrix from_context;  // C of z, r and candidate, and the readout's [3 D + O, H]
    PackedMatrix candidate;     // U [D, D]
    const float* score_vector;  // v_a [A]
    PackedMatrix from_word;     // W and b of z, r and candidate, and the readout's [3 D + O, E]
    // from_word of every target word [V, 3 D + O]; null: computed at every step.
    const float* word_table;
    const float* embeddings;        // [V, E]; null: int8_embeddings times embedding_scales
    const int8_t* int8_embeddings;  // [V, E]
    const float* embedding_scales;  // [V]
    int64_t state_size, key_size, context_size, readout_size;  // D, A, H, O
    int64_t pool;                                              // 2: maxout of pairs; 1: tanh
};

/// The source sentences of a batch.
struct SourceMemory {
    const float* annotations;       // [B, J, H]
    const float* keys;              // [B, J, A], U_a h_j
    const float* key_exponentials;  // [B, J, A], e^(2 keys)
    const float* max_key;           // [B], largest magnitude of a key
    const int64_t* lengths;         // [B]
    int64_t length;                 // J
};

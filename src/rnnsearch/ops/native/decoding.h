// What the functions of decoding.cpp are given.
#pragma once

#include "matrix.h"

struct GRUWeights {
  Matrix input;      // W and b of z, r, candidate [3 D, E]
  Matrix gates;      // U_z above U_r [2 D, D]
  Matrix candidate;  // U [D, D]
};

struct EncoderWeights {
  GRUWeights direction[2];
  int64_t size;
};

struct DecoderWeights {
  Matrix from_state;    // W_a, U_z, U_r, the readout's (with its bias) [A + 2 D + O, D]
  Matrix from_context;  // C of z, r, candidate, the readout's [3 D + O, H]
  Matrix candidate;     // U [D, D]
  const float* vector;  // v_a [A]
  Matrix from_word;     // W and b of z, r, candidate, the readout's [3 D + O, E]
  const float* words;   // from_word of every target symbol [V, 3 D + O]; null: multiplied at every step
  const float* embeddings;  // [V, E]; null: bytes times scales
  const int8_t* bytes;      // [V, E]
  const float* scales;      // [V]
  int64_t size, align, context, readout;  // D, A, H, O
  int64_t pool;         // 2: the readout is the maximum of pairs; 1: a tanh
};

struct Sources {
  const float* annotations;   // [B, J, H]
  const float* keys;          // [B, J, A], U_a h_j
  const float* exponentials;  // [B, J, A], e^(2 keys)
  const float* reach;         // [B], the greatest |key|
  const int64_t* lengths;     // [B]
  int64_t width;              // J
};

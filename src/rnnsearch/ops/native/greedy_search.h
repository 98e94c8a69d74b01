// Greedy search over any step, and what every search asks of a row of scores.
#pragma once

#include "matrix.h"
#include "team.h"

constexpr int64_t PANEL_PARTS = 4;  // that a product's panels are parted into for each thread

// y [rows, stride] = x W^T + base of prepared rows x, by all threads of a team.
static inline void product_in_team(Member& me, const Matrix& W, const float* x, int64_t rows, Base base, float* y,
                                   int64_t stride) {
  const int64_t together = rows <= 2 ? 8 : PANELS, groups = (W.panel_count() + together - 1) / together;
  const int64_t each = (groups + PANEL_PARTS * me.count - 1) / (PANEL_PARTS * me.count) * together;
  me.share((W.panel_count() + each - 1) / each, [&](int64_t part) {
    product(W, x, W.width(), rows, base, y, stride, part * each, smaller((part + 1) * each, W.panel_count()));
  });
}

// to [N, outputs] = W e + b of N words y, whose embeddings e are in fp32, or bytes times each word's scale. narrow: room for
// as many prepared rows.
static inline void words_in_team(Member& me, const Matrix& W, const float* embeddings, const int8_t* bytes,
                                 const float* scales, const int64_t* y, int64_t N, float* narrow, float* to) {
  const int64_t E = W.inputs;
  me.share(N, [&](int64_t n) {
    float word[E], *own = narrow + n * W.width();
    if (embeddings) return prepare(W, embeddings + y[n] * E, own);
    for (int64_t i = 0; i < E; i++) word[i] = scales[y[n]] * bytes[y[n] * E + i];
    prepare(W, word, own);
  });
  product_in_team(me, W, narrow, N, {W.bias, 0}, to, W.outputs);
}

// log sum_c exp(x_c), of which the highest is known
static inline float log_sum_exp(const float* x, int64_t count, float highest) {
  if (!(fabsf(highest) < INFINITY)) return highest;
  Vec total = all(0);
  int64_t c = 0;
  for (; c + LANES <= count; c += LANES) total += exponential(load(x + c) - highest);
  float rest = sum(total);
  for (; c < count; c++) rest += expf(x[c] - highest);
  return highest + logf(rest);
}

struct Found {
  int64_t column;
  float value;
};

// The highest of x, NaN counting as the highest, of equals the first.
static inline Found highest_of(const float* x, int64_t count) {
  Vec best = all(-INFINITY);
  int64_t c = 0;
  bool odd = false;
  for (; c + LANES <= count; c += LANES) {
    Vec v = load(x + c);
    VecInt nan = v != v;
    best = v > best ? v : best;
    for (int i = 0; i < LANES; i++) odd |= nan[i] != 0;
  }
  float top = -INFINITY;
  for (int i = 0; i < LANES; i++) top = greater(top, best[i]);
  for (; c < count; c++) {
    odd |= x[c] != x[c];
    top = greater(top, x[c]);
  }
  for (c = 0; c < count; c++)
    if (odd ? x[c] != x[c] : x[c] == top) return {c, x[c]};
  return {0, top};
}

// log sum_c exp(x_c)
static inline float log_sum_exp(const float* x, int64_t count) { return log_sum_exp(x, count, highest_of(x, count).value); }

// ids names the columns (null: column c is symbol c); banned columns are never taken; at most `most` [B] symbols a
// sentence.
struct Choice {
  const int64_t *ids, *banned;
  int64_t bans, bos, eos;
  const int64_t* most;
};

// tokens, scores [T, B] and alphas [B, T, J] of each sentence up to its end: length [B] steps, the last of them EOS unless
// it was cut.
struct Greedy {
  int64_t T;
  int64_t* tokens;
  float *scores, *alphas;
  int64_t* length;
};

// Greedy search of B sentences from states [B, D], which are overwritten; returns the steps taken. step(me, sentence, y,
// N, state, next, alpha, logits) is one position of N hypotheses, whose sentences are these, by every member of a team.
template <class S>
static int64_t greedy_search(int32_t threads, S step, int64_t C, const Choice& c, int64_t B, int64_t D, int64_t J,
                             float* state, const Greedy& made) {
  Buffer<int64_t> sentence(B), y(B), chosen(B);
  Buffer<float> logits(B * C), next(B * D), alpha(B * J), score(B);
  for (int64_t b = 0; b < B; b++) sentence[b] = b, y[b] = c.bos;
  int64_t N = B, t = 0;
  in_team(threads, [&](Member& me) {
    while (N > 0 && t < made.T) {
      step(me, sentence.data, y.data, N, state, next.data, alpha.data, logits.data);
      me.share(N, [&](int64_t n) {
        float* x = &logits[n * C];
        Found best = highest_of(x, C);
        const float norm = log_sum_exp(x, C, best.value);
        for (int64_t i = 0; i < c.bans; i++) x[c.banned[i]] = -INFINITY;
        if (x[best.column] != best.value) best = highest_of(x, C);
        chosen[n] = c.ids ? c.ids[best.column] : best.column;
        score[n] = best.value - norm;
      });
      me.alone([&] {
        int64_t kept = 0;
        for (int64_t n = 0; n < N; n++) {
          const int64_t b = sentence[n];
          made.tokens[t * B + b] = chosen[n];
          made.scores[t * B + b] = score[n];
          memcpy(made.alphas + (b * made.T + t) * J, &alpha[n * J], J * sizeof(float));
          made.length[b] = t + 1;
          if (chosen[n] == c.eos || t + 1 > c.most[b]) continue;
          sentence[kept] = b;
          y[kept] = chosen[n];
          memcpy(state + kept * D, &next[n * D], D * sizeof(float));
          kept++;
        }
        N = kept;
        t++;
      });
    }
  });
  return t;
}

// RNNsearch without gradients: the bidirectional GRU encoder, one step of the decoder, greedy and beam search; products
// with weights that are laid out, norms of rows, and the choice of the best columns. The definitions are
// models/encoders.py, models/decoders/bahdanau.py, models/outputs.py, search/beam.py, search/beam.py and
// search/topk.py; a law test holds these twins equal to them.
#include "decoding.h"

#include "beam_search.h"
#include "team.h"

namespace {

// The largest magnitude whose exponential the factored tanh is used for; sums of two are then far from overflow.
constexpr float FACTORED = 40.0f;

float magnitude(const float* x, int64_t count) {
  float m = 0;
  for (int64_t i = 0; i < count; i++) m = greater(m, fabsf(x[i]));
  return m;
}

}  // namespace

EXPORT int64_t panel_width() { return LANES; }

// W [outputs, inputs] row by row, into W.panels, W.scale and W.excess; what rounds up to panels is zero.
EXPORT void pack(const float* weight, const Matrix* W) {
  const int64_t inputs = W->inputs;
  memset(W->panels, 0, W->panel_count() * W->panel_size() * 4);
  for (int64_t row = 0; row < W->outputs; row++) {
    const float* from = weight + row * inputs;
    if (W->kind == FP32)
      for (int64_t i = 0; i < inputs; i++) ((float*)W->panels)[W->place(row, i)] = from[i];
    if (W->kind == BF16)
      for (int64_t i = 0; i < inputs; i++) {
        bfloat16 narrow[LANES];
        store(narrow, all(from[i]));
        ((bfloat16*)W->panels)[W->place(row, i)] = narrow[0];
      }
    if (W->kind != INT8) continue;
    const float scale = scale_of(from, inputs), inverse = scale == scale ? 1.0f / scale : 0.0f;
    int32_t sum = 0;
    for (int64_t i = 0; i < inputs && scale == scale; i++)
      sum += ((int8_t*)W->panels)[W->place(row, i)] = (int8_t)lrintf(from[i] * inverse);
    W->scale[row] = scale;
    W->excess[row] = MIDDLE * sum;
  }
}

// The same of a weight in bytes -127 .. 127, each row's scale beside it: W is in int8.
EXPORT void pack_bytes(const int8_t* weight, const float* scale, const Matrix* W) {
  const int64_t inputs = W->inputs;
  memset(W->panels, 0, W->panel_count() * W->panel_size() * 4);
  for (int64_t row = 0; row < W->outputs; row++) {
    int32_t sum = 0;
    for (int64_t i = 0; i < inputs; i++) sum += ((int8_t*)W->panels)[W->place(row, i)] = weight[row * inputs + i];
    W->scale[row] = scale[row];
    W->excess[row] = MIDDLE * sum;
  }
}

// y [rows, outputs] = x W^T + b
EXPORT void linear(const Matrix* W, const float* x, int64_t rows, float* y, int32_t threads) {
  Buffer<float> narrowed(rows * W->width());
  in_team(threads, [&](Member& me) {
    me.share(rows, [&](int64_t r) { prepare(*W, x + r * W->inputs, &narrowed[r * W->width()]); });
    product_in_team(me, *W, narrowed.data, rows, {W->bias, 0}, y, W->outputs);
  });
}

// Annotations [B, J, 2 D] (0 on padding) and the backward h_1 [B, D] of embedded words x [B, J, E].
// Lengths must fall from row to row.
EXPORT void encode(const EncoderWeights* w, const float* x, const int64_t* lengths, int64_t B, int64_t J, float* annotations,
            float* summary, int32_t threads) {
  const int64_t D = w->size, E = w->direction[0].input.inputs;
  const Matrix& in = w->direction[0].input;
  Buffer<int64_t> first(B + 1);  // row of each sentence's first word among the real ones
  first[0] = 0;
  for (int64_t b = 0; b < B; b++) first[b + 1] = first[b] + lengths[b];
  const int64_t words = first[B];
  Buffer<float> narrowed(words * in.width()), shares[2];
  for (auto& share : shares) share.need(words * 3 * D);
  memset(annotations, 0, B * J * 2 * D * sizeof(float));
  in_team(threads, [&](Member& me) {
    me.share(B, [&](int64_t b) {
      for (int64_t j = 0; j < lengths[b]; j++)
        prepare(in, x + (b * J + j) * E, &narrowed[(first[b] + j) * in.width()]);
    });
    for (int d = 0; d < 2; d++) product_in_team(me, w->direction[d].input, narrowed.data, words, {w->direction[d].input.bias, 0}, shares[d].data, 3 * D);
    // A direction of some sentences is work for one thread from beginning to end.
    const int64_t groups = greater(1, smaller(B, (me.count + 1) / 2));
    Buffer<float> h(B * D), reset(D), zr(B * 2 * D), c(B * D), low(B * D + B);
    me.share(2 * groups, [&](int64_t task) {
      const int64_t d = task % 2, g = task / 2, from = B * g / groups, to = B * (g + 1) / groups;
      const GRUWeights& u = w->direction[d];
      h.zeros(B * D);
      for (int64_t t = 0; t < lengths[from]; t++) {
        const int64_t j = d == 0 ? t : lengths[from] - 1 - t;
        int64_t n = 0;
        while (from + n < to && lengths[from + n] > j) n++;
        for (int64_t r = 0; r < n; r++) prepare(u.gates, &h[r * D], &low[r * u.gates.width()]);
        product(u.gates, low.data, u.gates.width(), n, {u.gates.bias, 0}, zr.data, 2 * D, 0, u.gates.panel_count());
        for (int64_t r = 0; r < n; r++) {
          const float* share = &shares[d][(first[from + r] + j) * 3 * D];
          float* gates = &zr[r * 2 * D];
          for (int64_t i = 0; i < 2 * D; i += LANES) store(gates + i, sigmoid(load(gates + i) + load(share + i)));
          for (int64_t i = 0; i < D; i += LANES) store(&reset[i], load(gates + D + i) * load(&h[r * D + i]));
          prepare(u.candidate, reset.data, &low[r * u.candidate.width()]);
        }
        const Matrix& U = u.candidate;
        product(U, low.data, U.width(), n, {U.bias, 0}, c.data, D, 0, U.panel_count());
        for (int64_t r = 0; r < n; r++) {
          const float *share = &shares[d][(first[from + r] + j) * 3 * D + 2 * D], *z = &zr[r * 2 * D];
          float* out = annotations + ((from + r) * J + j) * 2 * D + d * D;
          for (int64_t i = 0; i < D; i += LANES) {
            Vec old = load(&h[r * D + i]);
            Vec now = old + load(z + i) * (hyperbolic_tangent(load(&c[r * D + i]) + load(share + i)) - old);
            store(&h[r * D + i], now);
            store(out + i, now);
          }
        }
      }
      if (d == 1) memcpy(summary + from * D, h.data, (to - from) * D * sizeof(float));
    });
  });
}

namespace {

// Which of N hypotheses share a state: those of one sentence that go on from one hypothesis do, and with it all that is
// computed before the word is read. first[u] is the first hypothesis of each state, of[n] the number of n's.
struct States {
  Buffer<int64_t> first, of;
  int64_t count = 0;
  void each_its_own(int64_t N) {
    first.need(N);
    of.need(N);
    for (int64_t n = 0; n < N; n++) first[n] = of[n] = n;
    count = N;
  }
  // `each` neighbours are hypotheses of one sentence.
  void find(const float* state, int64_t D, int64_t N, int64_t each) {
    first.need(N);
    of.need(N);
    count = 0;
    for (int64_t n = 0; n < N; n++) {
      int64_t same = n / each * each;
      while (same < n && memcmp(state + same * D, state + n * D, D * sizeof(float))) same++;
      of[n] = same < n ? of[same] : count;
      if (same == n) first[count++] = n;
    }
  }
};

struct Scratch {
  States states;
  Buffer<float> state, context, reset, readout, word, from_state, from_context, from_word, gates, candidate;
  Scratch(const DecoderWeights& w, const Matrix& output, int64_t N) {
    state.need(N * w.from_state.width());
    context.need(N * w.from_context.width());
    reset.need(N * w.candidate.width());
    readout.need(N * output.width());
    from_state.need(N * w.from_state.outputs);
    from_context.need(N * w.from_context.outputs);
    gates.need(N * 3 * w.size);
    candidate.need(N * w.size);
    if (w.words) return;
    word.need(N * w.from_word.width());
    from_word.need(N * w.from_word.outputs);
  }
};

// e_j = v^T tanh(W_a s + U_a h_j) of one hypothesis, from W_a s; tanh(q + k) = 1 - 2 / (1 + e^2q e^2k).
void energies(const DecoderWeights& w, const Sources& m, int64_t b, const float* query, float* energy) {
  const int64_t A = w.align, length = m.lengths[b];
  float doubled[A];
  const bool factored = m.reach[b] < FACTORED && magnitude(query, A) < FACTORED;
  Vec whole = all(0);
  for (int64_t a = 0; a < A; a += LANES) {
    if (factored) store(doubled + a, exponential(2.0f * load(query + a)));
    whole += load(w.vector + a);
  }
  const float v_sum = sum(whole);
  for (int64_t j = 0; j < length; j++) {
    Vec total = all(0), other = all(0);
    if (factored) {
      const float* k = m.exponentials + (b * m.width + j) * A;
      int64_t a = 0;
      for (; a + 2 * LANES <= A; a += 2 * LANES) {
        Vec x = least(load(doubled + a) * load(k + a), all(1e37f)) + 1.0f;
        Vec y = least(load(doubled + a + LANES) * load(k + a + LANES), all(1e37f)) + 1.0f;
        total += load(w.vector + a) * reciprocal(x);
        other += load(w.vector + a + LANES) * reciprocal(y);
      }
      for (; a < A; a += LANES) total += load(w.vector + a) * reciprocal(least(load(doubled + a) * load(k + a), all(1e37f)) + 1.0f);
      energy[j] = v_sum - 2.0f * sum(total + other);
    } else {
      const float* k = m.keys + (b * m.width + j) * A;
      for (int64_t a = 0; a < A; a += LANES) total += load(w.vector + a) * hyperbolic_tangent(load(query + a) + load(k + a));
      energy[j] = sum(total);
    }
  }
}

// alpha [width] and the context of one hypothesis.
void attend(const DecoderWeights& w, const Sources& m, int64_t b, const float* query, float* alpha, float* context) {
  const int64_t length = m.lengths[b], H = w.context;
  energies(w, m, b, query, alpha);
  float top = alpha[0], total = 0;
  for (int64_t j = 1; j < length; j++) top = alpha[j] > top || alpha[j] != alpha[j] ? alpha[j] : top;
  for (int64_t j = 0; j < length; j++) total += alpha[j] = expf(alpha[j] - top);
  for (int64_t j = 0; j < length; j++) alpha[j] /= total;
  for (int64_t j = length; j < m.width; j++) alpha[j] = 0;
  const float* h = m.annotations + b * m.width * H;
  for (int64_t i = 0; i < H; i += LANES) {
    Vec c = all(0);
    for (int64_t j = 0; j < length; j++) c += load(h + j * H + i) * alpha[j];
    store(context + i, c);
  }
}

// Vector by vector as long as there are whole ones, the rest in one that zeros fill up.
void tanh_of_sum(const float* u, const float* v, const float* c, float* out, int64_t count) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) store(out + i, hyperbolic_tangent(load(u + i) + load(v + i) + load(c + i)));
  float rest[LANES] = {};
  for (int64_t k = i; k < count; k++) rest[k - i] = u[k] + v[k] + c[k];
  store(rest, hyperbolic_tangent(load(rest)));
  memcpy(out + i, rest, (count - i) * sizeof(float));
}

// One position of N = B * K hypotheses, by every thread of a team. state [N, D] is read and, at the end, overwritten;
// sentence[n] is hypothesis n's row of the sources; logits [N, C]; alpha [N, width].
void step_in_team(Member& me, const DecoderWeights& w, const Matrix& output, const Sources& m, const int64_t* sentence,
                  const int64_t* y, int64_t N, const float* state, float* next, float* alpha, float* logits,
                  Scratch& s) {
  const int64_t D = w.size, A = w.align, H = w.context, O = w.readout;
  const int64_t S = w.from_state.outputs, C = w.from_context.outputs, G = 3 * D + O;
  const Buffer<int64_t>&first = s.states.first, &of = s.states.of;
  const int64_t U = s.states.count;
  me.share(U, [&](int64_t u) { prepare(w.from_state, state + first[u] * D, &s.state[u * w.from_state.width()]); });
  product_in_team(me, w.from_state, s.state.data, U, {w.from_state.bias, 0}, s.from_state.data, S);
  if (!w.words)
    words_in_team(me, w.from_word, w.embeddings, w.bytes, w.scales, y, N, s.word.data, s.from_word.data);
  me.share(U, [&](int64_t u) {
    float context[H];
    attend(w, m, sentence[first[u]], &s.from_state[u * S], alpha + first[u] * m.width, context);
    prepare(w.from_context, context, &s.context[u * w.from_context.width()]);
  });
  product_in_team(me, w.from_context, s.context.data, U, {w.from_context.bias, 0}, s.from_context.data, C);
  me.share(N, [&](int64_t n) {
    const int64_t u = of[n];
    const float *own = &s.from_state[u * S + A], *sum = &s.from_context[u * C];
    const float* word = w.words ? w.words + y[n] * G : &s.from_word[n * G];
    float *gates = &s.gates[n * 3 * D], reset[D], hidden[O];
    if (first[u] != n) memcpy(alpha + n * m.width, alpha + first[u] * m.width, m.width * sizeof(float));
    for (int64_t i = 0; i < 2 * D; i += LANES)
      store(gates + i, sigmoid(load(sum + i) + load(own + i) + load(word + i)));
    for (int64_t i = 0; i < D; i += LANES) {
      store(reset + i, load(gates + D + i) * load(state + n * D + i));
      store(gates + 2 * D + i, load(sum + 2 * D + i) + load(word + 2 * D + i));
    }
    prepare(w.candidate, reset, &s.reset[n * w.candidate.width()]);
    const float *read = own + 2 * D, *c = sum + 3 * D, *v = word + 3 * D;
    if (w.pool == 2)
      for (int64_t i = 0; i < O / 2; i++) {
        const float a = read[2 * i] + v[2 * i] + c[2 * i], b = read[2 * i + 1] + v[2 * i + 1] + c[2 * i + 1];
        hidden[i] = a > b || a != a ? a : b;
      }
    else
      tanh_of_sum(read, v, c, hidden, O);
    prepare(output, hidden, &s.readout[n * output.width()]);
  });
  product_in_team(me, w.candidate, s.reset.data, N, {w.candidate.bias, 0}, s.candidate.data, D);
  product_in_team(me, output, s.readout.data, N, {output.bias, 0}, logits, output.outputs);
  me.share(N, [&](int64_t n) {
    for (int64_t i = 0; i < D; i += LANES) {
      const float* g = &s.gates[n * 3 * D];
      Vec old = load(state + n * D + i);
      Vec candidate = hyperbolic_tangent(load(&s.candidate[n * D + i]) + load(g + 2 * D + i));
      store(next + n * D + i, old + load(g + i) * (candidate - old));
    }
  });
}

}  // namespace

// One position: next [N, D], alpha [N, J], logits [N, C] and their log sum exp [N].
EXPORT void step(const DecoderWeights* w, const Matrix* output, const Sources* m, const int64_t* y, int64_t N, int64_t each,
          const float* state, float* next, float* alpha, float* logits, float* norm, int32_t threads) {
  Scratch s(*w, *output, N);
  Buffer<int64_t> sentence(N);
  for (int64_t n = 0; n < N; n++) sentence[n] = n / each;
  s.states.find(state, w->size, N, each);
  in_team(threads, [&](Member& me) {
    step_in_team(me, *w, *output, *m, sentence.data, y, N, state, next, alpha, logits, s);
    me.share(N, [&](int64_t n) {
      norm[n] = log_sum_exp(logits + n * output->outputs, output->outputs);
    });
  });
}

// Greedy search; see greedy_search.h.
EXPORT int64_t greedy(const DecoderWeights* w, const Matrix* output, const Sources* m, const Choice* choice, int64_t B,
                      float* state, const Greedy* made, int32_t threads) {
  Scratch s(*w, *output, B);
  auto step = [&](Member& me, const int64_t* sentence, const int64_t* y, int64_t N, const float* state, float* next,
                  float* alpha, float* logits) {
    me.alone([&] { s.states.each_its_own(N); });
    step_in_team(me, *w, *output, *m, sentence, y, N, state, next, alpha, logits, s);
  };
  return greedy_search(threads, step, output->outputs, *choice, B, w->size, m->width, state, *made);
}

// Beam search; see beam_search.h.
EXPORT int64_t beam(const DecoderWeights* w, const Matrix* output, const Sources* m, const Choice* choice, const Beam* beam,
                    int64_t B, const float* state, const Hypotheses* made, int32_t threads) {
  Scratch s(*w, *output, B * beam->width);
  auto step = [&](Member& me, const int64_t* sentence, const int64_t* y, int64_t N, int64_t each, const float* state,
                  float* next, float* alpha, float* logits) {
    me.alone([&] { s.states.find(state, w->size, N, each); });
    step_in_team(me, *w, *output, *m, sentence, y, N, state, next, alpha, logits, s);
  };
  return beam_search(threads, step, output->outputs, *choice, *beam, B, w->size, m->width, state, *made);
}

// log sum_c exp(x[n, c]) of each row.
EXPORT void norms(const float* x, int64_t rows, int64_t columns, float* norm, int32_t threads) {
  in_team(threads, [&](Member& me) {
    me.share(rows, [&](int64_t n) {
      norm[n] = log_sum_exp(x + n * columns, columns);
    });
  });
}

// The `count` highest of ahead[a, k] + scores[a, k, c]; see best_columns.
EXPORT void best(const float* scores, const float* ahead, int64_t sentences, int64_t K, int64_t C, int64_t count,
          int64_t* index, int32_t threads) {
  in_team(threads, [&](Member& me) {
    Buffer<float> value(count);
    me.share(sentences, [&](int64_t a) {
      best_columns(scores + a * K * C, ahead + a * K, K, C, count, index + a * count, value.data);
    });
  });
}

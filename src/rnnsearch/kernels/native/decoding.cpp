// RNNsearch without gradients: the bidirectional GRU encoder, one step of the decoder, greedy search, and the choice of
// the best columns. The definitions are models/one_layer_encoders.py, models/decoders/bahdanau.py, models/outputs.py,
// search/greedy.py and search/selection.py; a law test holds these twins equal to them.
#include "products.h"
#include <omp.h>
#include <vector>

namespace {

struct Share {
  int64_t begin, end;
};

// The part of `count` things that falls to one thread of the team.
Share mine(int64_t count) {
  const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
  return {count * thread / threads, count * (thread + 1) / threads};
}

void parallel_product(const Matrix& W, const float* x, int64_t rows, float* y, int64_t stride) {
  const Share part = mine(W.panel_count());
  product(W, x, rows, y, stride, part.begin, part.end);
}

// The largest magnitude whose exponential the factored tanh is used for; sums of two are then far from overflow.
constexpr float FACTORED = 40.0f;

float magnitude(const float* x, int64_t count) {
  float m = 0;
  for (int64_t i = 0; i < count; i++) m = std::max(m, std::abs(x[i]));
  return m;
}

// log sum_c exp(x_c)
float log_sum_exp(const float* x, int64_t count, float highest) {
  if (!(std::abs(highest) < std::numeric_limits<float>::infinity())) return highest;
  Vec total = all(0);
  int64_t c = 0;
  for (; c + LANES <= count; c += LANES) total += exponential(load(x + c) - highest);
  float rest = sum(total);
  for (; c < count; c++) rest += std::exp(x[c] - highest);
  return highest + std::log(rest);
}

struct Found {
  int64_t column;
  float value;
};

// The highest of x, NaN counting as the highest, of equals the first.
Found highest_of(const float* x, int64_t count) {
  Vec best = all(-std::numeric_limits<float>::infinity());
  int64_t c = 0;
  bool odd = false;
  for (; c + LANES <= count; c += LANES) {
    Vec v = load(x + c);
    VecInt nan = v != v;
    best = v > best ? v : best;
    for (int i = 0; i < LANES; i++) odd |= nan[i] != 0;
  }
  float top = -std::numeric_limits<float>::infinity();
  for (int i = 0; i < LANES; i++) top = std::max(top, best[i]);
  for (; c < count; c++) {
    odd |= x[c] != x[c];
    top = std::max(top, x[c]);
  }
  for (c = 0; c < count; c++)
    if (odd ? x[c] != x[c] : x[c] == top) return {c, x[c]};
  return {0, top};
}

}  // namespace

extern "C" {

int64_t panel_width() { return PANEL; }

int32_t has_bf16() {
#ifdef __AVX512BF16__
  return 1;
#else
  return 0;
#endif
}

// W [outputs, inputs] row by row, into `panels` of W.panel_count() * W.depth() * PANEL numbers of 4 bytes, W.scale and
// W.excess; what rounds up to panels is zero.
void pack(const float* weight, const Matrix* W, void* panels) {
  const int64_t depth = W->depth(), each = W->each(), inputs = W->inputs;
  std::memset(panels, 0, W->panel_count() * depth * PANEL * 4);
  for (int64_t row = 0; row < W->outputs; row++) {
    const float* from = weight + row * inputs;
    // Of the row's first number; those that lie beside each other there are followed by other rows'.
    const int64_t start = ((row / PANEL) * depth * PANEL + row % PANEL) * each;
    if (W->kind == FP32)
      for (int64_t i = 0; i < inputs; i++) ((float*)panels)[start + i * PANEL] = from[i];
    if (W->kind == BF16)
      for (int64_t i = 0; i < inputs; i++) ((uint16_t*)panels)[start + i / 2 * 2 * PANEL + i % 2] = narrow(from[i]);
    if (W->kind != INT8) continue;
    const float scale = scale_of(from, inputs), inverse = scale == scale ? 1.0f / scale : 0.0f;
    int32_t sum = 0;
    for (int64_t i = 0; i < inputs && scale == scale; i++)
      sum += ((int8_t*)panels)[start + i / 4 * 4 * PANEL + i % 4] = (int8_t)std::lrint(from[i] * inverse);
    W->scale[row] = scale;
    W->excess[row] = MIDDLE * sum;
  }
}

// y [rows, outputs] = x W^T + b
void linear(const Matrix* W, const float* x, int64_t rows, float* y, int32_t threads) {
  std::vector<float> narrowed(rows * W->width());
#pragma omp parallel num_threads(threads)
  {
    const Share part = mine(rows);
    for (int64_t r = part.begin; r < part.end; r++) prepare(*W, x + r * W->inputs, &narrowed[r * W->width()]);
#pragma omp barrier
    parallel_product(*W, narrowed.data(), rows, y, W->outputs);
  }
}

struct GRUWeights {
  Matrix input;      // W and b of z, r, candidate [3 D, E]
  Matrix gates;      // U_z above U_r [2 D, D]
  Matrix candidate;  // U [D, D]
};

struct EncoderWeights {
  GRUWeights direction[2];
  int64_t size;
};

// Annotations [B, J, 2 D] (0 on padding) and the backward h_1 [B, D] of embedded words x [B, J, E].
// Lengths must fall from row to row.
void encode(const EncoderWeights* w, const float* x, const int64_t* lengths, int64_t B, int64_t J, float* annotations,
            float* summary, int32_t threads) {
  const int64_t D = w->size, E = w->direction[0].input.inputs;
  const Matrix& in = w->direction[0].input;
  std::vector<int64_t> first(B + 1, 0);  // row of each sentence's first word among the real ones
  for (int64_t b = 0; b < B; b++) first[b + 1] = first[b] + lengths[b];
  const int64_t words = first[B];
  std::vector<float> narrowed(words * in.width()), shares[2];
  for (auto& share : shares) share.resize(words * 3 * D);
  std::memset(annotations, 0, B * J * 2 * D * sizeof(float));
#pragma omp parallel num_threads(threads)
  {
    const Share part = mine(B);
    for (int64_t b = part.begin; b < part.end; b++)
      for (int64_t j = 0; j < lengths[b]; j++)
        prepare(in, x + (b * J + j) * E, &narrowed[(first[b] + j) * in.width()]);
#pragma omp barrier
    for (int d = 0; d < 2; d++) parallel_product(w->direction[d].input, narrowed.data(), words, shares[d].data(), 3 * D);
#pragma omp barrier
    // A direction of some sentences is work for one thread from beginning to end.
    const int64_t groups = std::max<int64_t>(1, std::min<int64_t>(B, (omp_get_num_threads() + 1) / 2));
    std::vector<float> h(B * D), reset(B * D), zr(B * 2 * D), c(B * D), low(B * D);
#pragma omp for schedule(static, 1)
    for (int64_t task = 0; task < 2 * groups; task++) {
      const int64_t d = task % 2, g = task / 2, from = B * g / groups, to = B * (g + 1) / groups;
      const GRUWeights& u = w->direction[d];
      std::fill(h.begin(), h.end(), 0.0f);
      for (int64_t t = 0; t < lengths[from]; t++) {
        const int64_t j = d == 0 ? t : lengths[from] - 1 - t;
        int64_t n = 0;
        while (from + n < to && lengths[from + n] > j) n++;
        for (int64_t r = 0; r < n; r++) prepare(u.gates, &h[r * D], &low[r * u.gates.width()]);
        product(u.gates, low.data(), n, zr.data(), 2 * D, 0, u.gates.panel_count());
        for (int64_t r = 0; r < n; r++) {
          const float* share = &shares[d][(first[from + r] + j) * 3 * D];
          float* gates = &zr[r * 2 * D];
          for (int64_t i = 0; i < 2 * D; i += LANES) store(gates + i, sigmoid(load(gates + i) + load(share + i)));
          for (int64_t i = 0; i < D; i += LANES) store(&reset[i], load(gates + D + i) * load(&h[r * D + i]));
          prepare(u.candidate, reset.data(), &low[r * u.candidate.width()]);
        }
        product(u.candidate, low.data(), n, c.data(), D, 0, u.candidate.panel_count());
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
      if (d == 1) std::memcpy(summary + from * D, h.data(), (to - from) * D * sizeof(float));
    }
  }
}

struct DecoderWeights {
  Matrix from_state;    // W_a, U_z, U_r, the readout's (with its bias) [A + 2 D + O, D]
  Matrix from_context;  // C of z, r, candidate, the readout's [3 D + O, H]
  Matrix candidate;     // U [D, D]
  const float* vector;  // v_a [A]
  Matrix from_word;     // W and b of z, r, candidate, the readout's [3 D + O, E]
  const float* words;   // from_word of every target symbol [V, 3 D + O]; null: multiplied at every step
  const float* embeddings;  // [V, E]
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

}  // extern "C"

namespace {

// Which of N hypotheses share a state: those of one sentence that go on from one hypothesis do, and with it all that is
// computed before the word is read. first[u] is the first hypothesis of each state, of[n] the number of n's.
struct States {
  std::vector<int64_t> first, of;
  void each_its_own(int64_t N) {
    first.resize(N);
    for (int64_t n = 0; n < N; n++) first[n] = n;
    of = first;
  }
  // `each` neighbours are hypotheses of one sentence.
  void find(const float* state, int64_t D, int64_t N, int64_t each) {
    first.clear();
    of.resize(N);
    for (int64_t n = 0; n < N; n++) {
      int64_t same = n / each * each;
      while (same < n && std::memcmp(state + same * D, state + n * D, D * sizeof(float))) same++;
      of[n] = same < n ? of[same] : (int64_t)first.size();
      if (same == n) first.push_back(n);
    }
  }
};

struct Scratch {
  States states;
  std::vector<float> state, context, reset, readout, word, from_state, from_context, from_word, gates, candidate;
  void resize(const DecoderWeights& w, const Matrix& output, int64_t N) {
    state.resize(N * w.from_state.width());
    context.resize(N * w.from_context.width());
    reset.resize(N * w.candidate.width());
    readout.resize(N * output.width());
    from_state.resize(N * w.from_state.outputs);
    from_context.resize(N * w.from_context.outputs);
    gates.resize(N * 3 * w.size);
    candidate.resize(N * w.size);
    if (w.words) return;
    word.resize(N * w.from_word.width());
    from_word.resize(N * w.from_word.outputs);
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
  for (int64_t j = 0; j < length; j++) total += alpha[j] = std::exp(alpha[j] - top);
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
  std::memcpy(out + i, rest, (count - i) * sizeof(float));
}

// One position of N = B * K hypotheses, by every thread of a team. state [N, D] is read and, at the end, overwritten;
// sentence[n] is hypothesis n's row of the sources; logits [N, C]; alpha [N, width].
void step_in_team(const DecoderWeights& w, const Matrix& output, const Sources& m, const int64_t* sentence,
                  const int64_t* y, int64_t N, const float* state, float* next, float* alpha, float* logits,
                  Scratch& s) {
  const int64_t D = w.size, A = w.align, H = w.context, O = w.readout;
  const int64_t S = w.from_state.outputs, C = w.from_context.outputs, G = 3 * D + O;
  const std::vector<int64_t>&first = s.states.first, &of = s.states.of;
  const int64_t U = first.size();
  const Share states = mine(U), rows = mine(N);
  for (int64_t u = states.begin; u < states.end; u++)
    prepare(w.from_state, state + first[u] * D, &s.state[u * w.from_state.width()]);
  for (int64_t n = rows.begin; n < rows.end && !w.words; n++)
    prepare(w.from_word, w.embeddings + y[n] * w.from_word.inputs, &s.word[n * w.from_word.width()]);
#pragma omp barrier
  parallel_product(w.from_state, s.state.data(), U, s.from_state.data(), S);
  if (!w.words) parallel_product(w.from_word, s.word.data(), N, s.from_word.data(), G);
#pragma omp barrier
  for (int64_t u = states.begin; u < states.end; u++) {
    float context[H];
    attend(w, m, sentence[first[u]], &s.from_state[u * S], alpha + first[u] * m.width, context);
    prepare(w.from_context, context, &s.context[u * w.from_context.width()]);
  }
#pragma omp barrier
  parallel_product(w.from_context, s.context.data(), U, s.from_context.data(), C);
#pragma omp barrier
  for (int64_t n = rows.begin; n < rows.end; n++) {
    const int64_t u = of[n];
    const float *own = &s.from_state[u * S + A], *sum = &s.from_context[u * C];
    const float* word = w.words ? w.words + y[n] * G : &s.from_word[n * G];
    float *gates = &s.gates[n * 3 * D], reset[D], hidden[O];
    if (first[u] != n) std::memcpy(alpha + n * m.width, alpha + first[u] * m.width, m.width * sizeof(float));
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
  }
#pragma omp barrier
  parallel_product(w.candidate, s.reset.data(), N, s.candidate.data(), D);
  parallel_product(output, s.readout.data(), N, logits, output.outputs);
#pragma omp barrier
  for (int64_t n = rows.begin; n < rows.end; n++)
    for (int64_t i = 0; i < D; i += LANES) {
      const float* g = &s.gates[n * 3 * D];
      Vec old = load(state + n * D + i);
      Vec candidate = hyperbolic_tangent(load(&s.candidate[n * D + i]) + load(g + 2 * D + i));
      store(next + n * D + i, old + load(g + i) * (candidate - old));
    }
}

}  // namespace

extern "C" {

// One position: next [N, D], alpha [N, J], logits [N, C] and their log sum exp [N].
void step(const DecoderWeights* w, const Matrix* output, const Sources* m, const int64_t* y, int64_t N, int64_t each,
          const float* state, float* next, float* alpha, float* logits, float* norm, int32_t threads) {
  static thread_local Scratch scratch;
  Scratch& s = scratch;
  s.resize(*w, *output, N);
  std::vector<int64_t> sentence(N);
  for (int64_t n = 0; n < N; n++) sentence[n] = n / each;
  s.states.find(state, w->size, N, each);
#pragma omp parallel num_threads(threads)
  {
    step_in_team(*w, *output, *m, sentence.data(), y, N, state, next, alpha, logits, s);
    const Share rows = mine(N);
    for (int64_t n = rows.begin; n < rows.end; n++) {
      const float* x = logits + n * output->outputs;
      norm[n] = log_sum_exp(x, output->outputs, highest_of(x, output->outputs).value);
    }
  }
}

// Greedy search: tokens and scores [T, B] and alpha [B, T, J] of each sentence up to its end (length[b] steps, the last of
// them EOS unless it was cut after `most[b]` symbols); returns the steps taken. state [B, D] is overwritten. `ids` names the output's columns
// (null: column c is symbol c); banned columns are never taken.
int64_t greedy(const DecoderWeights* w, const Matrix* output, const Sources* m, const int64_t* ids,
               const int64_t* banned, int64_t bans, int64_t bos, int64_t eos, const int64_t* most, int64_t T,
               int64_t B, float* state, int64_t* tokens, float* scores, float* alphas, int64_t* length,
               int32_t threads) {
  static thread_local Scratch scratch;
  Scratch& s = scratch;
  s.resize(*w, *output, B);
  const int64_t D = w->size, C = output->outputs;
  std::vector<int64_t> sentence(B), y(B, bos), chosen(B);
  std::vector<float> logits(B * C), next(B * D), alpha(B * m->width), score(B);
  for (int64_t b = 0; b < B; b++) sentence[b] = b;
  s.states.each_its_own(B);
  int64_t N = B, t = 0;
#pragma omp parallel num_threads(threads)
  while (true) {
    step_in_team(*w, *output, *m, sentence.data(), y.data(), N, state, next.data(), alpha.data(), logits.data(), s);
    const Share rows = mine(N);
    for (int64_t n = rows.begin; n < rows.end; n++) {
      float* x = &logits[n * C];
      Found best = highest_of(x, C);
      const float norm = log_sum_exp(x, C, best.value);
      for (int64_t i = 0; i < bans; i++) x[banned[i]] = -std::numeric_limits<float>::infinity();
      if (x[best.column] != best.value) best = highest_of(x, C);
      chosen[n] = ids ? ids[best.column] : best.column;
      score[n] = best.value - norm;
    }
#pragma omp barrier
#pragma omp single
    {
      int64_t kept = 0;
      for (int64_t n = 0; n < N; n++) {
        const int64_t b = sentence[n];
        tokens[t * B + b] = chosen[n];
        scores[t * B + b] = score[n];
        std::memcpy(alphas + (b * T + t) * m->width, &alpha[n * m->width], m->width * sizeof(float));
        length[b] = t + 1;
        if (chosen[n] == eos || t + 1 > most[b]) continue;
        sentence[kept] = b;
        y[kept] = chosen[n];
        std::memcpy(state + kept * D, &next[n * D], D * sizeof(float));
        kept++;
      }
      N = kept;
      s.states.each_its_own(N);
      t++;
    }
    if (N == 0) break;
  }
  return t;
}

// log sum_c exp(x[n, c]) of each row.
void norms(const float* x, int64_t rows, int64_t columns, float* norm, int32_t threads) {
#pragma omp parallel num_threads(threads)
  {
    const Share part = mine(rows);
    for (int64_t n = part.begin; n < part.end; n++)
      norm[n] = log_sum_exp(x + n * columns, columns, highest_of(x + n * columns, columns).value);
  }
}

// The `count` highest of ahead[a, k] + scores[a, k, c], of equals the lowest k * C + c first, NaN as the highest.
void best(const float* scores, const float* ahead, int64_t sentences, int64_t K, int64_t C, int64_t count,
          int64_t* index, int32_t threads) {
#pragma omp parallel num_threads(threads)
  {
    const Share part = mine(sentences);
    std::vector<float> value(count);
    for (int64_t a = part.begin; a < part.end; a++) {
      int64_t filled = 0, *out = index + a * count;
      const float infinity = std::numeric_limits<float>::infinity();
      auto take = [&](float x, int64_t at) {
        float v = x != x ? infinity : x;
        if (filled == count && !(v > value[count - 1])) return;
        int64_t i = filled < count ? filled++ : count - 1;
        for (; i > 0 && value[i - 1] < v; i--) {
          value[i] = value[i - 1];
          out[i] = out[i - 1];
        }
        value[i] = v;
        out[i] = at;
      };
      for (int64_t k = 0; k < K; k++) {
        const float *row = scores + (a * K + k) * C, head = ahead[a * K + k];
        int64_t c = 0;
        for (; c < C && filled < count; c++) take(row[c] + head, k * C + c);
        for (; c + LANES <= C; c += LANES) {
          Vec x = load(row + c) + head;
          const float bar = value[count - 1];
          VecInt over = ~(x <= all(bar));
          bool any = false;
          for (int i = 0; i < LANES; i++) any |= over[i] != 0;
          if (any)
            for (int i = 0; i < LANES; i++) take(x[i], k * C + c + i);
        }
        for (; c < C; c++) take(row[c] + head, k * C + c);
      }
    }
  }
}

}  // extern "C"

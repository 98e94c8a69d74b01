// Beam search over any step: the twin of search/beam.py with search/backtrace.py's books, one call for a batch. What is said
// there of when a hypothesis is finished, and when a sentence stops, holds here.
#pragma once

#include "greedy_search.h"

// Numbers that grow in number; those that are there stay.
template <class T>
struct Grown {
  T* data = nullptr;
  int64_t size = 0, room = 0;
  Grown() = default;
  Grown(const Grown&) = delete;
  ~Grown() { free(data); }
  T* more(int64_t count) {
    if (size + count > room) {
      room = greater(2 * room, size + count + 64);
      if (uint64_t(room) > MOST_BYTES / sizeof(T)) abort();
      data = (T*)realloc(data, room * sizeof(T));
      if (!data) abort();
    }
    size += count;
    return data + size - count;
  }
  T& operator[](int64_t i) { return data[i]; }
};

// The `count` highest of scores + ahead over a sentence's K rows of C, of equals the lowest k * C + c first, NaN as the
// highest; fewer where there are fewer. value: their sums.
static inline int64_t best_columns(const float* scores, const float* ahead, int64_t K, int64_t C, int64_t count,
                                   int64_t* out, float* value) {
  int64_t filled = 0;
  auto take = [&](float x, int64_t at) {
    float v = x != x ? INFINITY : x;
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
    const float *row = scores + k * C, head = ahead[k];
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
  return filled;
}

// What a beam is asked besides what greedy search is (Choice, whose ids must be null where something is to be spelled).
struct Beam {
  int64_t width, n_best;
  int64_t gnmt;  // the length's norm: ((5 + length) / 6) ^ length_penalty, else length ^ length_penalty
  double length_penalty;
  float coverage_penalty;
  const uint8_t* covered;  // [B, J], the source symbols to cover
  const int64_t* forced;   // [B, forced_count] columns to begin with, -1 behind the last
  int64_t forced_count;
  const int64_t* places;    // [B + 1]: sentence b must then spell the bytes places[b] .. places[b + 1]
  const int64_t* ways;      // [places[B] + 1]: where each byte's symbols begin in way
  const int64_t* way;
  const int64_t* sizes;     // [V], bytes of each symbol
};

// The n_best hypotheses of each sentence, the best first; length 0 where there are fewer: tokens and scores [B, n, T],
// alphas [B, n, T, J], length, finished [B, n].
struct Hypotheses {
  int64_t T;
  int64_t* tokens;
  float *scores, *alphas;
  int64_t *length, *finished;
};

constexpr float LEAST_COVERED = 1e-6f;

class Books {
  // A symbol of a hypothesis; what it was made of stands before it.
  struct Symbol {
    int64_t before, token, alpha;  // alpha: its row among all rows of weights
    float score;
  };
  struct End {
    int64_t sentence, last, length, order, finished;
    double score;
  };

  const Choice& choice;
  const Beam& beam;
  const int64_t B, J, K, M;  // M: continuations looked at
  Grown<Symbol> symbols;
  Grown<float> alphas;
  Grown<End> ends;
  Buffer<double> best;  // [B, n_best], rising
  Buffer<int64_t> count;
  // Of the A sentences in the batch: their numbers, and K hypotheses each.
  Buffer<int64_t> last, place, parent, old_last, taken;
  Buffer<float> worth, old_worth, old_cost, cost, sums, old_sums, value;

  double norm(double length) const {
    return pow(beam.gnmt ? (5.0 + length) / 6.0 : length, beam.length_penalty);
  }
  bool covers() const { return beam.coverage_penalty > 0 && K > 1; }
  void end(int64_t b, int64_t symbol, int64_t length, float total, float own_cost, bool finished) {
    *ends.more(1) = {b, symbol, length, ends.size, finished, double(total) / norm(length) + own_cost};
  }

 public:
  Buffer<int64_t> sentence, y, row, each_sentence;
  int64_t A, width = 1, steps = 0;  // sentences in the batch, and hypotheses of each

  Books(const Choice& choice, const Beam& beam, int64_t B, int64_t J)
      : choice(choice), beam(beam), B(B), J(J), K(beam.width), M(K == 1 ? 1 : 2 * K), best(B * beam.n_best), count(B),
        last(B * K), place(B * K), parent(B * M), old_last(B * K), taken(B * M), worth(B * K), old_worth(B * K),
        old_cost(B * K), cost(B * K), sums(B * K * J), old_sums(B * K * J), value(B * M), sentence(B), y(B * K),
        row(B * K), each_sentence(B * K), A(B) {
    count.zeros(B);
    sums.zeros(B * K * J);
    for (int64_t i = 0; i < B * beam.n_best; i++) best[i] = -INFINITY;
    for (int64_t b = 0; b < B; b++) {
      sentence[b] = each_sentence[b] = b;
      y[b] = choice.bos;
      last[b * K] = -1;
      worth[b * K] = 0;
      place[b * K] = 0;
    }
  }

  // -inf for what is not allowed in the scores [C] of row n.
  void forbid(int64_t n, float* x, int64_t C) {
    const int64_t b = each_sentence[n], forced = steps < beam.forced_count ? beam.forced[b * beam.forced_count + steps] : -1;
    if (forced >= 0) {
      const float kept = x[forced];
      for (int64_t c = 0; c < C; c++) x[c] = -INFINITY;
      x[forced] = kept;
      return;
    }
    const int64_t at = beam.places ? beam.places[b] + place[n / width * K + n % width] : 0;
    if (beam.places && at < beam.places[b + 1]) {
      const int64_t from = beam.ways[at], to = beam.ways[at + 1];
      float* kept = (float*)malloc((to - from + 1) * sizeof(float));
      if (!kept) abort();
      for (int64_t i = from; i < to; i++) kept[i - from] = x[beam.way[i]];
      for (int64_t c = 0; c < C; c++) x[c] = -INFINITY;
      for (int64_t i = from; i < to; i++) x[beam.way[i]] = kept[i - from];
      free(kept);
    }
    for (int64_t i = 0; i < choice.bans; i++) x[choice.banned[i]] = -INFINITY;
  }

  // The continuations of sentence a, from its rows' scores [width, C] and their norms.
  void choose(int64_t a, const float* scores, const float* norms, const float* alpha, int64_t C) {
    float ahead[K], top = -INFINITY;
    for (int64_t k = 0; k < width; k++) top = greater(top, worth[a * K + k] - norms[k]);
    for (int64_t k = 0; k < width; k++) ahead[k] = worth[a * K + k] - norms[k] - top;
    int64_t found = best_columns(scores, ahead, width, C, M, &taken[a * M], &value[a * M]);
    for (; found < M; found++) taken[a * M + found] = -1;
    if (!covers()) return;
    for (int64_t k = 0; k < width; k++) {
      float total = 0, *own = &sums[(a * K + k) * J];
      for (int64_t j = 0; j < J; j++) {
        own[j] += alpha[k * J + j];
        if (beam.covered[sentence[a] * J + j]) total += logf(greater(LEAST_COVERED, own[j] < 1 ? own[j] : 1.0f));
      }
      cost[a * K + k] = beam.coverage_penalty * total;
    }
  }

  // All sentences' continuations taken in: who lives on (`row`: from which row; `y`: with which symbol) and which
  // sentences do. Returns whether one does.
  bool advance(const float* scores, const float* norms, const float* alpha, int64_t C) {
    const int64_t rows = A * width, first_alpha = J ? alphas.size / J : 0;
    if (J) memcpy(alphas.more(rows * J), alpha, rows * J * sizeof(float));
    memcpy(old_last.data, last.data, B * K * sizeof(int64_t));
    memcpy(old_sums.data, sums.data, B * K * J * sizeof(float));
    Buffer<int64_t> old_place(B * K);
    memcpy(old_place.data, place.data, B * K * sizeof(int64_t));
    Buffer<float> before(B * K), before_cost(B * K);
    memcpy(before.data, worth.data, B * K * sizeof(float));
    memcpy(before_cost.data, old_cost.data, B * K * sizeof(float));
    steps++;
    int64_t kept = 0;
    for (int64_t a = 0; a < A; a++) {
      const int64_t b = sentence[a];
      const bool longest = steps > choice.most[b];
      bool gone[K];  // hypotheses that have ended at this step
      for (int64_t k = 0; k < K; k++) gone[k] = false;
      float top = -INFINITY;
      int64_t live = 0;
      // The first K that do not end live on, in order; ended ones fill places that nothing else does.
      for (int64_t m = 0; m < M; m++) {
        const int64_t at = taken[a * M + m];
        if (at < 0) continue;
        const int64_t k = at / C, c = at % C, token = choice.ids ? choice.ids[c] : c, n = a * width + k;
        const float score = scores[n * C + c] - norms[n], total = before[a * K + k] + score;
        const float own_cost = covers() ? cost[a * K + k] : 0;
        if (token == choice.eos) {
          if (m >= K || total == -INFINITY) continue;
          *symbols.more(1) = {old_last[a * K + k], token, first_alpha + n, score};
          end(b, symbols.size - 1, steps, total, own_cost, true);
          count[b]++;
          gone[k] = true;
          if (K > 1) insert(b, double(total / float(norm(steps)) + own_cost));
          continue;
        }
        top = greater(top, total);
        if (live == K) continue;
        *symbols.more(1) = {old_last[a * K + k], token, first_alpha + n, score};
        const int64_t to = kept * K + live++;
        last[to] = symbols.size - 1;
        worth[to] = total;
        old_cost[to] = own_cost;
        row[to] = n;
        y[to] = token;
        place[to] = spelled(b, old_place[a * K + k], token);
        if (covers()) memcpy(&sums[to * J], &old_sums[(a * K + k) * J], J * sizeof(float));
      }
      const bool dead = top == -INFINITY;
      if (longest && count[b] < beam.n_best)
        for (int64_t k = 0; k < width; k++)
          if (!gone[k] && before[a * K + k] > -INFINITY && steps > 1)
            end(b, old_last[a * K + k], steps - 1, before[a * K + k], before_cost[a * K + k], false);
      bool stops = longest || dead || count[b] >= K;
      if (K > 1) stops |= top / norm(double(choice.most[b]) + 1.0) <= best[b * beam.n_best];
      if (stops) continue;
      for (; live < K; live++) {
        const int64_t to = kept * K + live;
        last[to] = last[kept * K];
        worth[to] = -INFINITY;
        old_cost[to] = 0;
        row[to] = row[kept * K];
        y[to] = y[kept * K];
        place[to] = place[kept * K];
      }
      sentence[kept] = b;
      for (int64_t k = 0; k < K; k++) each_sentence[kept * K + k] = b;
      kept++;
    }
    A = kept;
    width = K;
    return A > 0;
  }

  void write(const Hypotheses& made) {
    memset(made.length, 0, B * beam.n_best * sizeof(int64_t));
    Buffer<int64_t> used(B);
    used.zeros(B);
    Buffer<uint8_t> done(greater(ends.size, 1));
    done.zeros(greater(ends.size, 1));
    for (int64_t left = ends.size; left > 0; left--) {  // few: the best that is left, each time
      int64_t next = -1;
      for (int64_t i = 0; i < ends.size; i++)
        if (!done[i] && (next < 0 || before(ends[i], ends[next]))) next = i;
      done[next] = 1;
      const End& e = ends[next];
      if (used[e.sentence] == beam.n_best) continue;
      const int64_t r = e.sentence * beam.n_best + used[e.sentence]++;
      made.length[r] = e.length;
      made.finished[r] = e.finished;
      int64_t s = e.last;
      for (int64_t t = e.length - 1; t >= 0; t--, s = symbols[s].before) {
        made.tokens[r * made.T + t] = symbols[s].token;
        made.scores[r * made.T + t] = symbols[s].score;
        memcpy(made.alphas + (r * made.T + t) * J, alphas.data + symbols[s].alpha * J, J * sizeof(float));
      }
    }
  }

 private:
  static bool before(const End& a, const End& b) {
    if (a.finished != b.finished) return a.finished > b.finished;
    if (a.score != b.score) return a.score > b.score;
    return a.order < b.order;
  }
  // Of the n best finished scores of a sentence, the lowest first.
  void insert(int64_t b, double score) {
    double* own = &best[b * beam.n_best];
    if (!(score > own[0])) return;
    int64_t i = 0;
    for (; i + 1 < beam.n_best && own[i + 1] < score; i++) own[i] = own[i + 1];
    own[i] = score;
  }
  // Bytes of what is to be spelled that are, after one more symbol.
  int64_t spelled(int64_t b, int64_t so_far, int64_t token) const {
    if (!beam.places) return 0;
    const bool forced = steps <= beam.forced_count && beam.forced[b * beam.forced_count + steps - 1] >= 0;
    return forced ? 0 : smaller(so_far + beam.sizes[token], beam.places[b + 1] - beam.places[b]);
  }
};

// Beam search of B sentences from states [B, D]; step as in greedy_search. Returns whether all scores were numbers and
// each sentence had a continuation that is allowed.
template <class S>
static int64_t beam_search(int32_t threads, S step, int64_t C, const Choice& choice, const Beam& beam, int64_t B, int64_t D,
                           int64_t J, const float* first, const Hypotheses& made) {
  Books books(choice, beam, B, J);
  const int64_t most = B * beam.width;
  Buffer<float> state(most * D), next(most * D), logits(most * C), alpha(most * J), norm(most);
  memcpy(state.data, first, B * D * sizeof(float));
  bool going = B > 0, odd = false;
  in_team(threads, [&](Member& me) {
    while (going) {
      const int64_t N = books.A * books.width, width = books.width;
      step(me, books.each_sentence.data, books.y.data, N, width, state.data, next.data, alpha.data, logits.data);
      me.share(N, [&](int64_t n) {
        float* x = &logits[n * C];
        norm[n] = log_sum_exp(x, C);
        if (norm[n] != norm[n]) odd = true;
        books.forbid(n, x, C);
      });
      me.share(books.A, [&](int64_t a) {
        books.choose(a, &logits[a * width * C], &norm[a * width], &alpha[a * width * J], C);
      });
      me.alone([&] {
        going = books.advance(logits.data, norm.data, alpha.data, C) && !odd;
        const int64_t rows = books.A * books.width;
        for (int64_t n = 0; n < rows; n++) memcpy(&state[n * D], &next[books.row[n] * D], D * sizeof(float));
      });
    }
  });
  books.write(made);
  return !odd;
}

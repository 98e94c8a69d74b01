// Search with any decoder whose step is a list of parts (recurrence.h): one position of many hypotheses, greedy search and
// beam search; and a cell's sequence, whose step is such a list, too. Weights are laid out once, in the kind that products
// run in; all else is fp32.
#include "beam_search.h"
#include "decoder.h"
#include "parts.h"

namespace {

struct Scratch {
    const Decoder& d;
    const Index remembered, state_size;  // of a row of states: what features remember of a sentence, and all
    Buffer<float> sums, values, before, reads, narrow, alphas, read_out, shown, word, from_word;
    Buffer<Index> real, count, narrow_at;

    // read: numbers of a row that the output layer reads.
    Scratch(const Decoder& d, const Batch& m, Index read, Index B, Index N)
        : d(d), remembered(m.width * d.features.memory), state_size(d.state_size + remembered), sums(N * d.sums_size), values(N * d.values_size), before(N * d.values_size), reads(N * d.reads_size),
          alphas(N * d.heads * m.width), read_out(N * read), shown(N * m.width * d.features.width), real(B * m.width), count(B), narrow_at(d.parts) {
        if (d.from_word) word.need(N * d.from_word->width()), from_word.need(N * d.x_size);
        Index most = 0;
        for (Index p = 0; p < d.parts; p++) {
            narrow_at[p] = most;
            if (d.part[p].what == PRODUCT) most += N * ((const Matrix*)d.part[p].weight)->width();
        }
        narrow.need(most);
        for (Index b = 0; b < B; b++) count[b] = real_positions(m.mask + b * m.width, m.width, &real[b * m.width]);
    }

    Row<float> row(Index n) {
        Row<float> r = {};
        r.sums = &sums[n * d.sums_size];
        r.own = &values[n * d.values_size];
        r.before = &before[n * d.values_size];
        r.reads = &reads[n * d.reads_size];
        r.real = true;
        return r;
    }
};

// One position of N rows by every member of a team; state, next [N, state_size]; x: the inputs' share, a row every x_row
// numbers; alpha [N, width]. Without a table and x, words must have been given.
void advance_in_team(Member& me, const Decoder& d, const Batch& m, const int64_t* sentence, const int64_t* y, const float* x,
                     Index x_row, Index N, const float* state, float* next, float* alpha, Scratch& s) {
    auto begin_row = [&](Index n) {
        memcpy(&s.sums[n * d.sums_size], d.bias, d.sums_size * sizeof(float));
        const float* from = state + n * s.state_size + s.remembered;
        for (Index k = 0; k < d.states; k++) {
            memcpy(&s.before[n * d.values_size + d.state[2 * k]], from, d.state[2 * k + 1] * sizeof(float));
            from += d.state[2 * k + 1];
        }
    };
    auto run = [&](const Part& p, Index n) {
        const Row<float> r = s.row(n);
        const Index b = sentence[n];
        if (p.what == INPUT) return input(p, r, x ? x + n * x_row : d.table + y[n] * d.x_size);
        const Index t = Index(state[(n + 1) * s.state_size - 1]);
        if (p.what == CLOCK) return clock(p, r, t);
        if (p.what != ADDITIVE && p.what != DOT) return part_of_step(p, r, (const float*)nullptr, s.count[b]);
        const Sentence whole = {&s.real[b * m.width], s.count[b], m.width, d.key, d.annotation, d.heads, 0, 0};
        Sentence seen = whole;
        if (d.reach >= 0) {
            const Index known = smaller(t, m.centre_count - 1);
            const float centre = p.at[3] >= 0 ? r.own[p.at[3]] : m.centres[b * m.centre_count + known];
            seen = seen.within(d.reach, centre, d.spread);
        }
        float *own = &s.alphas[n * d.heads * m.width], *numbers = &s.shown[n * m.width * d.features.width];
        const Shown shown = {numbers, (const float*)p.weight, p.what == ADDITIVE ? d.features.width : 0};
        const float* memory = state + n * s.state_size;
        if (shown.width) see(d.features, whole, memory, numbers);
        attend(p, r, seen, m.keys + b * m.width * d.key, m.annotations + b * m.width * d.annotation, d.vector, d.scale,
               shown, own);
        if (shown.width) {
            keep_shares(d.features, r.sums, r.own);
            memcpy(next + n * s.state_size, memory, s.remembered * sizeof(float));
            remember(d.features, whole, shown.weight, m.prepared + b * m.width * d.features.prepared, r.own, own, memory,
                     next + n * s.state_size);
        }
        for (Index j = 0; j < m.width; j++) {
            float total = 0;
            for (Index head = 0; head < d.heads; head++) total += own[head * m.width + j];
            alpha[n * m.width + j] = total / d.heads;
        }
    };
    for (Index p = 0; p < d.parts;) {
        Index products = p;  // rows go through the parts up to the next products, and are made ready for these
        while (products < d.parts && d.part[products].what != PRODUCT) products++;
        Index after = products;
        while (after < d.parts && d.part[after].what == PRODUCT) after++;
        me.share(N, [&](Index n) {
            if (p == 0) begin_row(n);
            for (Index k = p; k < products; k++) run(d.part[k], n);
            for (Index k = products; k < after; k++) {
                const Matrix& W = *(const Matrix*)d.part[k].weight;
                prepare(W, &s.reads[n * d.reads_size + d.part[k].at[1]], &s.narrow[s.narrow_at[k] + n * W.width()]);
            }
        });
        for (Index k = products; k < after; k++) {
            const Matrix& W = *(const Matrix*)d.part[k].weight;
            float* to = s.sums.data + d.part[k].at[0];
            product_in_team(me, W, &s.narrow[s.narrow_at[k]], N, {to, d.sums_size}, to, d.sums_size);
        }
        p = after;
    }
    me.share(N, [&](Index n) {
        const Row<float> r = s.row(n);
        float* to = next + n * s.state_size + s.remembered;
        for (Index k = 0; k < d.states; k++) {
            memcpy(to, r.own + d.state[2 * k], d.state[2 * k + 1] * sizeof(float));
            to += d.state[2 * k + 1];
        }
        *to = state[(n + 1) * s.state_size - 1] + 1;
    });
}

// A position as above, and its logits [N, C].
void step_in_team(Member& me, const Decoder& d, const Matrix& output, const Batch& m, const int64_t* sentence,
                  const int64_t* y, const float* x, Index N, const float* state, float* next, float* alpha,
                  float* logits, Scratch& s) {
    if (!x && !d.table) {
        words_in_team(me, *d.from_word, d.embeddings, d.bytes, d.scales, y, N, s.word.data, s.from_word.data);
        x = s.from_word.data;
    }
    advance_in_team(me, d, m, sentence, y, x, d.x_size, N, state, next, alpha, s);
    me.share(N, [&](Index n) {
        prepare(output, s.row(n).reads + d.readout->at[0], &s.read_out[n * output.width()]);
    });
    product_in_team(me, output, s.read_out.data, N, {output.bias, 0}, logits, output.outputs);
}

}  // namespace

// One position of N hypotheses, `each` of a sentence: next [N, S], alpha [N, J], logits [N, C] and their log sum exp [N].
EXPORT void decoder_step(const Decoder* d, const Matrix* output, const Batch* m, const int64_t* y, const float* x,
                         int64_t N, int64_t each, const float* state, float* next, float* alpha, float* logits,
                         float* norm, int32_t threads) {
    Buffer<int64_t> sentence(N);
    for (Index n = 0; n < N; n++) sentence[n] = n / each;
    Scratch s(*d, *m, output->width(), N / each, N);
    in_team(threads, [&](Member& me) {
        step_in_team(me, *d, *output, *m, sentence.data, y, x, N, state, next, alpha, logits, s);
        me.share(N, [&](Index n) {
            norm[n] = log_sum_exp(logits + n * output->outputs, output->outputs);
        });
    });
}

// Greedy search of B sentences by a decoder that has its words; see greedy_search.h.
EXPORT int64_t decoder_greedy(const Decoder* d, const Matrix* output, const Batch* m, const Choice* choice, int64_t B,
                              float* state, const Greedy* made, int32_t threads) {
    Scratch s(*d, *m, output->width(), B, B);
    auto step = [&](Member& me, const int64_t* sentence, const int64_t* y, Index N, const float* state, float* next,
                    float* alpha, float* logits) {
        step_in_team(me, *d, *output, *m, sentence, y, nullptr, N, state, next, alpha, logits, s);
    };
    return greedy_search(threads, step, output->outputs, *choice, B, s.state_size, m->width, state, *made);
}

// Beam search of B sentences by a decoder that has its words; see beam_search.h.
EXPORT int64_t decoder_beam(const Decoder* d, const Matrix* output, const Batch* m, const Choice* choice, const Beam* beam,
                            int64_t B, const float* state, const Hypotheses* made, int32_t threads) {
    Scratch s(*d, *m, output->width(), B, B * beam->width);
    auto step = [&](Member& me, const int64_t* sentence, const int64_t* y, Index N, Index, const float* state,
                    float* next, float* alpha, float* logits) {
        step_in_team(me, *d, *output, *m, sentence, y, nullptr, N, state, next, alpha, logits, s);
    };
    return beam_search(threads, step, output->outputs, *choice, *beam, B, s.state_size, m->width, state, *made);
}

// A cell over the first lengths[b] of J positions of B rows, from the last to the first where `backward`: x [B, J, x_size];
// state [B, S] before, and then behind all; outputs [B, J, D], its first value, which are left as they are elsewhere.
// Lengths must fall from row to row.
EXPORT void cell_sequence(const Decoder* d, const int64_t* lengths, int64_t B, int64_t J, int64_t backward, const float* x,
                          float* state, float* outputs, int32_t threads) {
    const Batch nothing = {};
    Scratch s(*d, nothing, 0, B, B);
    Buffer<int64_t> row(B);
    Buffer<float> next(B * s.state_size);
    for (Index b = 0; b < B; b++) row[b] = b;
    const Index D = d->state[1], longest = lengths[0];
    in_team(threads, [&](Member& me) {
        for (Index t = 0; t < longest; t++) {
            const Index j = backward ? longest - 1 - t : t;
            Index N = 0;
            while (N < B && lengths[N] > j) N++;
            advance_in_team(me, *d, nothing, row.data, nullptr, x + j * d->x_size, J * d->x_size, N, state, next.data, nullptr, s);
            me.share(N, [&](Index n) {
                memcpy(state + n * s.state_size, &next[n * s.state_size], s.state_size * sizeof(float));
                memcpy(outputs + (n * J + j) * D, s.row(n).own + d->state[0], D * sizeof(float));
            });
        }
    });
}

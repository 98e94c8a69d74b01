// The recurrence of recurrence.h, onward and back: threads take sentences through all positions.
#include "recurrence.h"

#include "parts.h"

namespace {

constexpr Index PARTS = 2;  // that the sentences are parted into for each thread

// One thread's work on the sentences begin .. end.
template <class T>
struct Worker {
    const Recurrence& of;
    const Matrix* matrices;  // one a part; used by PRODUCT alone
    const Index begin, rows;
    Buffer<float> sums, d_own, d_before, d_reads, d_energy, shown, d_shown, d_hidden, d_alpha, d_memory, d_memory_before;
    Buffer<Index> real, count;
    float* own_gradients = nullptr;  // of v_a, then of each part's own weights, from the last part to the first

    Worker(const Recurrence& of, const Matrix* matrices, Index begin, Index end)
        : of(of), matrices(matrices), begin(begin), rows(end - begin), real(rows * of.source), count(rows) {
        for (Index m = 0; m < rows; m++)
            count[m] = real_positions(of.mask + (begin + m) * of.source, of.source, &real[m * of.source]);
    }

    Sentence sentence(Index m) const {
        return {&real[m * of.source], count[m], of.source, of.key, of.annotation, of.heads, 0, 0};
    }
    // What a position sees of it.
    Sentence seen(const Part& p, Index m, Index i, const Row<T>& r) const {
        if (of.reach < 0) return sentence(m);
        const float centre = p.at[3] < 0 ? of.centres[(begin + m) * of.positions + i] : r.own[p.at[3]];
        return sentence(m).within(of.reach, centre, of.spread);
    }
    const T* keys(Index m) const { return (const T*)of.keys + (begin + m) * of.source * of.key; }
    const T* annotations(Index m) const { return (const T*)of.annotations + (begin + m) * of.source * of.annotation; }
    float* alphas(Index m, Index i) const {
        return of.alphas + ((begin + m) * of.positions + i) * of.heads * of.source;
    }
    float* memory(Index m, Index i) const {
        return of.memory + ((begin + m) * (of.positions + 1) + i) * of.source * of.features.memory;
    }
    const float* prepared(Index m) const { return of.prepared + (begin + m) * of.source * of.features.prepared; }
    T* reads(Index m, Index i) const { return (T*)of.reads + ((begin + m) * of.positions + i) * of.reads_size; }
    T* sums_gradient(Index m, Index i) const { return (T*)of.d_sums + ((begin + m) * of.positions + i) * of.sums_size; }
    const float* mask_of(const Part& p, Index m, Index i) const {
        return p.mask ? p.mask + (begin + m) * p.mask_row + i * p.mask_position : nullptr;
    }

    Row<T> row(Index m, Index i) const {
        float* first = of.values + (begin + m) * (of.positions + 1) * of.values_size;
        const Index own = of.backward ? i : i + 1, before = of.backward ? i + 1 : i;
        Row<T> r = {};
        r.sums = sums.data + m * of.sums_size;
        r.own = first + own * of.values_size;
        r.before = first + before * of.values_size;
        r.reads = reads(m, i);
        r.real = !of.real || of.real[(begin + m) * of.positions + i];
        r.d_own = d_own.data + m * of.values_size;
        r.d_before = d_before.data + m * of.values_size;
        r.d_reads = d_reads.data + m * of.reads_size;
        if (of.d_sums) r.d_sums = sums_gradient(m, i);
        return r;
    }

    // What the features show of a sentence.
    Shown shown_of(const Part& p, Index m, Index i) {
        const Features& f = of.features;
        if (p.what == ADDITIVE && f.count) see(f, sentence(m), memory(m, i), shown.need(of.source * f.width));
        return {shown.data, (const float*)p.weight, p.what == ADDITIVE ? f.width : 0};
    }
    void attend_onward(const Part& p, Index m, Index i, const Row<T>& r) {
        const Shown f = shown_of(p, m, i);
        attend(p, r, seen(p, m, i, r), keys(m), annotations(m), of.vector, of.scale, f, alphas(m, i));
        if (!f.width) return;
        keep_shares(of.features, r.sums, r.own);
        remember(of.features, sentence(m), f.weight, prepared(m), r.own, alphas(m, i), memory(m, i), memory(m, i + 1));
    }
    // From d of what is remembered after a position: d of what was before, and d_alpha, besides what comes from outside.
    void remember_back(const Part& p, Index m, Index i, const Row<T>& r, float* d_weights) {
        const Index size = of.source * of.features.memory;
        for (Index j = 0; j < of.source; j++)
            d_alpha[j] = of.d_alphas ? of.d_alphas[((begin + m) * of.positions + i) * of.source + j] : 0.0f;
        float* d_next = &d_memory[m * size];
        remember_backward(of.features, sentence(m), (const float*)p.weight, prepared(m), r.own, alphas(m, i), memory(m, i),
                          d_next, d_memory_before.zeros(size), d_alpha.data,
                          of.d_prepared + (begin + m) * of.source * of.features.prepared, d_weights, r.d_sums);
        memcpy(d_next, d_memory_before.data, size * sizeof(float));
    }

    void attend_back(const Part& p, Index m, Index i, const Row<T>& r, float* d_weights) {
        const Sentence s = seen(p, m, i, r);
        const Shown f = shown_of(p, m, i);
        if (f.width) remember_back(p, m, i, r, d_weights);
        float ignored, *d_centre = p.at[3] < 0 ? &ignored : r.d_own + p.at[3];
        const float* d_c = r.d_own + p.at[0];
        T* kept = (T*)of.d_contexts + ((begin + m) * of.positions + i) * s.annotation;
        copy(d_c, s.annotation, kept);
        float* d_keys = of.d_keys + (begin + m) * s.source * s.key;
        const Index own = s.key / s.heads;
        for (Index head = 0; head < s.heads; head++) {
            const Index at = head * s.source;
            const float* d_weighed = of.d_alphas;
            if (d_weighed) d_weighed += ((begin + m) * of.positions + i) * s.heads * s.source + at;
            energies_backward(s, head, annotations(m), alphas(m, i) + at, d_c, f.width ? d_alpha.data : d_weighed,
                              d_energy.data, d_centre);
            if (p.what == DOT)
                dot_backward(s, keys(m), of.scale, r.value(p, 1), d_energy.data, d_keys, r.d_value(p, 1));
            else
                additive_backward(s, keys(m), of.vector, r.own + p.at[2], f, d_energy.data, head * own,
                                  (head + 1) * own, d_keys, own_gradients, r.d_sums + p.at[1], d_hidden.data);
        }
        if (!f.width) return;
        shown_backward(s, f, d_hidden.data, d_shown.zeros(of.source * f.width), d_weights);
        see_backward(of.features, sentence(m), d_shown.data, &d_memory[m * of.source * of.features.memory]);
    }

    // The same rows of all sentences times a matrix: sums at[0] += W reads at[1].
    void multiply(const Part& p, const Matrix& W, Index i) {
        const Index by_x = of.positions * of.reads_size * sizeof(T) / 4;
        float* y = sums.data + p.at[0];
        product(W, reads(0, i) + p.at[1], by_x, rows, {y, of.sums_size}, y, of.sums_size, 0, W.panel_count());
    }
    void multiply_back(const Part& p, const Matrix& W, Index i) {
        const Index by_x = of.positions * of.sums_size * sizeof(T) / 4;
        float* y = d_reads.data + p.at[1];
        product(W, sums_gradient(0, i) + p.at[0], by_x, rows, {y, of.reads_size}, y, of.reads_size, 0, W.panel_count());
    }

    void onward() {
        sums.need(rows * of.sums_size);
        for (Index t = 0; t < of.positions; t++) {
            const Index i = of.backward ? of.positions - 1 - t : t;
            for (Index m = 0; m < rows; m++) memcpy(&sums[m * of.sums_size], of.bias, of.sums_size * sizeof(float));
            for (Index n = 0; n < of.parts; n++) {
                const Part& p = of.part[n];
                if (p.what == PRODUCT) {
                    multiply(p, matrices[n], i);
                    continue;
                }
                for (Index m = 0; m < rows; m++) {
                    const Row<T> r = row(m, i);
                    if (p.what == INPUT) input(p, r, (const T*)of.x + ((begin + m) * of.positions + i) * of.x_size);
                    else if (p.what == ADDITIVE || p.what == DOT) attend_onward(p, m, i, r);
                    else if (p.what == CLOCK) clock(p, r, p.at[1] + i);
                    else part_of_step(p, r, mask_of(p, m, i), count[m]);
                }
            }
        }
    }

    void back() {
        d_own.need(rows * of.values_size);
        d_before.zeros(rows * of.values_size);
        d_reads.need(rows * of.reads_size);
        d_energy.need(of.source);
        d_alpha.need(of.source);
        d_hidden.need(of.features.count ? of.source * of.key : 0);
        d_memory.zeros(rows * of.source * of.features.memory);
        for (Index t = of.positions - 1; t >= 0; t--) {
            const Index i = of.backward ? of.positions - 1 - t : t;
            float* spare = d_own.data;
            d_own.data = d_before.data;
            d_before.data = spare;
            memset(d_before.data, 0, rows * of.values_size * sizeof(float));
            memset(d_reads.data, 0, rows * of.reads_size * sizeof(float));
            for (Index n = 0; n < of.outsides; n++) {
                const Outside& from = of.outside[n];
                float* to = (from.before ? d_before.data : d_own.data) + from.at;
                for (Index m = 0; m < rows; m++) {
                    const float* d = from.d + ((begin + m) * of.positions + i) * from.size;
                    for (Index k = 0; k < from.size; k += LANES)
                        add(to + m * of.values_size + k, load(d + k, from.size - k), from.size - k);
                }
            }
            float* own = own_gradients + of.key;
            for (Index n = of.parts - 1; n >= 0; n--) {
                const Part& p = of.part[n];
                if (p.what == PRODUCT) multiply_back(p, matrices[n], i);
                for (Index m = 0; m < rows && p.what != PRODUCT && p.what != INPUT; m++) {
                    const Row<T> r = row(m, i);
                    switch (p.what) {
                        case READ: read_back(p, r, mask_of(p, m, i)); break;
                        case SIGMOID: activate_back<T, true>(p, r); break;
                        case TANH: activate_back<T, false>(p, r); break;
                        case GRU: gru_back(p, r); break;
                        case LSTM: lstm_back(p, r); break;
                        case SSRU: ssru_back(p, r); break;
                        case ADD: sum_of_back(p, r, mask_of(p, m, i)); break;
                        case NORM: norm_back(p, r, own); break;
                        case CENTRE: centre_back(p, r, count[m], own); break;
                        case CLOCK: clock_back(p, r, p.at[1] + i, own); break;
                        default: attend_back(p, m, i, r, own);
                    }
                }
                own += own_weights(p, of.features);
            }
        }
        memcpy(of.d_first + begin * of.values_size, d_before.data, rows * of.values_size * sizeof(float));
        if (of.source == 0) return;
        for (Index m = 0; m < rows; m++)
            annotations_backward(sentence(m), of.positions, alphas(m, 0),
                                 (const T*)of.d_contexts + (begin + m) * of.positions * of.annotation,
                                 (T*)of.d_annotations + (begin + m) * of.source * of.annotation);
    }
};

// The matrices of all products, laid out by a team; `transposed`: for the way back.
template <class T>
struct Matrices {
    Buffer<Matrix> all;
    Buffer<float> panels;

    Matrices(const Recurrence& of, bool transposed) : all(of.parts) {
        Index size = 0;
        for (Index n = 0; n < of.parts; n++) {
            const Part& p = of.part[n];
            all[n] = {};
            if (p.what != PRODUCT) continue;
            all[n].kind = KIND_OF<T>;
            all[n].outputs = transposed ? p.at[2] : p.size;
            all[n].inputs = transposed ? p.size : p.at[2];
            size += all[n].panel_count() * all[n].panel_size();
        }
        float* next = panels.need(size);
        for (Index n = 0; n < of.parts; n++) {
            all[n].panels = next;
            if (of.part[n].what == PRODUCT) next += all[n].panel_count() * all[n].panel_size();
        }
    }

    void fill_in_team(Member& me, const Recurrence& of, bool transposed) {
        for (Index n = 0; n < of.parts; n++) {
            if (of.part[n].what != PRODUCT) continue;
            const Index inputs = of.part[n].at[2];
            me.share(all[n].panel_count(), [&](Index panel) {
                fill<T>(all[n], (const float*)of.part[n].weight, transposed ? 1 : inputs, transposed ? inputs : 1, panel,
                     panel + 1);
            });
        }
    }
};

Index parts_of(const Recurrence& of, Index threads) { return greater(1, smaller(of.rows, threads == 1 ? 1 : PARTS * threads)); }

template <class T>
void onward(Index threads, const Recurrence& of) {
    Matrices<T> matrices(of, false);
    const Index parts = parts_of(of, threads);
    in_team(threads, [&](Member& me) {
        matrices.fill_in_team(me, of, false);
        me.share(parts, [&](Index part) {
            const Share rows(of.rows, part, parts);
            Worker<T>(of, matrices.all.data, rows.begin, rows.end).onward();
        });
    });
}

template <class T>
void back(Index threads, const Recurrence& of) {
    Matrices<T> matrices(of, true);
    const Index parts = parts_of(of, threads);
    Index gradients = of.key;
    for (Index n = 0; n < of.parts; n++) gradients += own_weights(of.part[n], of.features);
    Buffer<float> own;  // each part's sums over its sentences, added up in the parts' order
    own.zeros(parts * gradients);
    memset(of.d_keys, 0, of.rows * of.source * of.key * sizeof(float));
    if (of.features.count) memset(of.d_prepared, 0, of.rows * of.source * of.features.prepared * sizeof(float));
    in_team(threads, [&](Member& me) {
        matrices.fill_in_team(me, of, true);
        me.share(parts, [&](Index part) {
            const Share rows(of.rows, part, parts);
            Worker<T> worker(of, matrices.all.data, rows.begin, rows.end);
            worker.own_gradients = &own[part * gradients];
            worker.back();
        });
    });
    auto total = [&](float* to, Index at, Index size) {
        memset(to, 0, size * sizeof(float));
        for (Index part = 0; part < parts; part++)
            for (Index k = 0; k < size; k++) to[k] += own[part * gradients + at + k];
    };
    total(of.d_vector, 0, of.key);
    Index at = of.key;
    for (Index n = of.parts - 1; n >= 0; n--) {
        const Index size = own_weights(of.part[n], of.features);
        if (size) total(of.part[n].gradient, at, size);
        at += size;
    }
}

}  // namespace

EXPORT void recurrence_onward_fp32(Index threads, const Recurrence* of) { onward<float>(threads, *of); }
EXPORT void recurrence_onward_bf16(Index threads, const Recurrence* of) { onward<bfloat16>(threads, *of); }
EXPORT void recurrence_back_fp32(Index threads, const Recurrence* of) { back<float>(threads, *of); }
EXPORT void recurrence_back_bf16(Index threads, const Recurrence* of) { back<bfloat16>(threads, *of); }

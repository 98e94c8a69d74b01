// Crews: the helper threads of parallel regions, and the protocol by which they claim iterations.
//
// Each thread of a team has a share of the iterations and takes others' when its own is used up. A
// share is one word: the number of the loop, and how many of its iterations are left. A claim
// decrements it atomically, so that a helper that is late by any number of loops claims nothing.
// Whoever has claimed iterations may read the loop until it has reported them as finished.
//
// Helpers exist on Linux only; elsewhere a team is one thread.
#include "thread_team.h"

#ifdef __linux__

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace {

constexpr Index MAX_CREWS = 16;      // regions at the same time that have helpers
constexpr int SPINS = 1000;          // polls before a thread sleeps: some ten microseconds
constexpr int64_t MEMORY = 16000000;  // ns of measured loops that count
constexpr int64_t TRIAL = 8000000;    // ns for which a crew tries the other mode
constexpr int64_t MIN_PERIOD = 64000000, MAX_PERIOD = 512000000;  // ns between trials

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the number of a loop is a word's upper half");

/// A thread's part of a loop, in a cache line of its own.
struct alignas(64) Share {
    union {
        uint64_t word;  // number of the loop << 32 | iterations that are left
        uint32_t halves[2];
    };
    int32_t sleeps;  // 1 while the helper of this share sleeps
};

/// Measured loops without or with helpers: ns that they took, and that one thread would compute.
struct Mode {
    int64_t time, work;
};

}  // namespace

/// Helpers of one region at a time, and its loop in progress.
struct Crew {
    Share shares[MAX_THREADS];
    Loop loop;
    Index threads;  // of the loop
    uint32_t number;
    int caller_processor;
    Mode modes[2];      // without helpers, and with them
    int mode;           // of the loops of this period
    bool is_trial;      // true if the period is a trial
    int64_t period;     // ns between trials
    int64_t end;        // ns, of the period
    uint32_t random;    // state of a generator, to choose the loops that are measured
    Index started;             // helpers; the first is thread 1
    pid_t process;                 // in which they run: a forked process has none
    alignas(64) pid_t user;        // process of the region that has this crew, or 0
    alignas(64) int32_t finished;  // iterations of the loop that helpers have done
    int32_t caller_sleeps;
};

namespace {

Crew crews[MAX_CREWS];

struct Helper {
    Crew* crew;
    Index thread;
};
Helper helpers[MAX_CREWS][MAX_THREADS];

/// Hint to the processor that this is a spin loop.
inline void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

inline int64_t now(clockid_t clock = CLOCK_MONOTONIC) {
    timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * int64_t(1000000000) + t.tv_nsec;
}

void futex(void* word, int operation, uint32_t value) {
    syscall(SYS_futex, word, operation, value, nullptr, nullptr, 0);
}

/// Runs iterations of the loop until none is left to claim; returns how many.
Index work(Crew& crew, Index thread, uint32_t number) {
    const Index threads = __atomic_load_n(&crew.threads, __ATOMIC_RELAXED);
    Index done = 0;
    for (Index offset = 0; offset < threads; offset++) {
        const Index owner = (thread + offset) % threads;
        uint64_t* word = &crew.shares[owner].word;
        uint64_t share = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        while (uint32_t(share) && uint32_t(share >> 32) == number) {
            const Index left = uint32_t(share);
            const Index count = min(left, __atomic_load_n(&crew.loop.claim, __ATOMIC_RELAXED));
            if (!__atomic_compare_exchange_n(word, &share, share - count, false, __ATOMIC_ACQ_REL,
                                             __ATOMIC_ACQUIRE))
                continue;
            const Loop& loop = crew.loop;
            const Index begin = Chunk(loop.count, owner, crew.threads).end - left;
            loop.run(loop.body, begin, begin + count, thread);
            done += count;
            share = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        }
    }
    return done;
}

/// Wakes the next helpers of a loop: each thread wakes two more at most, because this takes some
/// microseconds each.
void wake_next(Crew& crew, Index thread) {
    const Index threads = __atomic_load_n(&crew.threads, __ATOMIC_RELAXED);
    for (Index next = 2 * thread + 1; next <= 2 * thread + 2 && next < threads; next++) {
        Share& share = crew.shares[next];
        if (__atomic_exchange_n(&share.sleeps, 0, __ATOMIC_SEQ_CST))
            futex(&share.halves[1], FUTEX_WAKE_PRIVATE, 1);
    }
}

/// Works on each loop of a crew, for ever.
void* run_helper(void* argument) {
    const Helper& helper = *(Helper*)argument;
    Crew& crew = *helper.crew;
    Share& share = crew.shares[helper.thread];
    uint32_t seen = 0;
    for (int spins = 0;;) {
        const uint32_t number = __atomic_load_n(&share.halves[1], __ATOMIC_ACQUIRE);
        if (number != seen) {
            seen = number;
            // On the processor of the caller, a helper would only delay it.
            const bool in_the_way =
                sched_getcpu() == __atomic_load_n(&crew.caller_processor, __ATOMIC_RELAXED);
            spins = in_the_way ? SPINS : 0;
            wake_next(crew, helper.thread);
            if (in_the_way) continue;
            const Index done = work(crew, helper.thread, number);
            if (!done) continue;
            __atomic_add_fetch(&crew.finished, int32_t(done), __ATOMIC_SEQ_CST);
            if (__atomic_load_n(&crew.caller_sleeps, __ATOMIC_SEQ_CST))
                futex(&crew.finished, FUTEX_WAKE_PRIVATE, 1);
        } else if (++spins < SPINS) {
            pause_cpu();
        } else {
            __atomic_store_n(&share.sleeps, 1, __ATOMIC_SEQ_CST);
            if (__atomic_load_n(&share.halves[1], __ATOMIC_SEQ_CST) == seen)
                futex(&share.halves[1], FUTEX_WAIT_PRIVATE, seen);
            __atomic_store_n(&share.sleeps, 0, __ATOMIC_SEQ_CST);
            spins = 0;
        }
    }
    return nullptr;
}

/// Starts helpers until there are enough for `threads` threads, or the system refuses.
void start_helpers(Crew& crew, Index threads) {
    sigset_t all, previous;  // signals are for the threads of the program
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &previous);
    for (; crew.started + 1 < threads; crew.started++) {
        Helper& helper = helpers[&crew - crews][crew.started + 1];
        helper = {&crew, crew.started + 1};
        crew.shares[helper.thread].word = 0;
        crew.shares[helper.thread].sleeps = 0;
        pthread_t thread;
        if (pthread_create(&thread, nullptr, run_helper, &helper)) break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

/// Waits until helpers have finished some iterations.
void wait_for_helpers(Crew& crew, Index iterations) {
    auto finished = [&] { return __atomic_load_n(&crew.finished, __ATOMIC_SEQ_CST); };
    for (int i = 0; i < SPINS; i++) {
        if (finished() == iterations) return;
        pause_cpu();
    }
    __atomic_store_n(&crew.caller_sleeps, 1, __ATOMIC_SEQ_CST);
    for (int32_t value = finished(); value != iterations; value = finished())
        futex(&crew.finished, FUTEX_WAIT_PRIVATE, uint32_t(value));
    __atomic_store_n(&crew.caller_sleeps, 0, __ATOMIC_SEQ_CST);
}

/// Adds a measured loop to the current mode; older loops count less and less.
void record(Crew& crew, int64_t time, int64_t work) {
    Mode& mode = crew.modes[crew.mode];
    mode.time += time;
    mode.work += work;
    if (mode.time < MEMORY) return;
    mode.time /= 2;
    mode.work /= 2;
}

/// Begins a period with the faster mode, or with a trial of the other one.
///
/// Without helpers, a loop cannot take less time than its work: while loops with helpers do, there
/// is nothing to try.
void begin_period(Crew& crew, int64_t time) {
    const Mode &alone = crew.modes[0], &shared = crew.modes[1];
    const bool is_faster = shared.time <= shared.work ||
                           double(shared.time) * alone.work <= double(alone.time) * shared.work;
    const bool was_trial = crew.is_trial;
    crew.is_trial = !was_trial && !(is_faster && shared.time <= shared.work);
    if (was_trial && is_faster != crew.mode) crew.period = min(2 * crew.period, MAX_PERIOD);
    else if (was_trial) crew.period = MIN_PERIOD;
    crew.mode = is_faster != crew.is_trial;
    crew.end = time + (crew.is_trial ? TRIAL : crew.period);
    if (!crew.is_trial) return;
    Mode& tried = crew.modes[crew.mode];  // what was measured long ago counts little
    tried = {tried.time / 4, tried.work / 4};
}

/// Makes a loop the crew's loop in progress, and wakes helpers.
void publish(Crew& crew, const Loop& loop, Index threads) {
    crew.loop = loop;
    crew.threads = threads;
    __atomic_store_n(&crew.caller_processor, sched_getcpu(), __ATOMIC_RELAXED);
    crew.finished = 0;
    crew.number++;
    for (Index thread = threads - 1; thread >= 0; thread--) {
        const Index count = Chunk(loop.count, thread, threads).size();
        __atomic_store_n(&crew.shares[thread].word, uint64_t(crew.number) << 32 | uint64_t(count),
                         __ATOMIC_SEQ_CST);
    }
    wake_next(crew, 0);
}

}  // namespace

Crew* acquire_crew(Index threads) {
    const pid_t process = getpid();
    for (Crew& crew : crews) {
        pid_t user = __atomic_load_n(&crew.user, __ATOMIC_RELAXED);
        // A region of another process was in progress when this one was forked.
        if (user == process || !__atomic_compare_exchange_n(&crew.user, &user, process, false,
                                                            __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            continue;
        if (crew.process != process) {
            crew.started = crew.caller_sleeps = 0;
            crew.modes[0] = crew.modes[1] = {0, 0};
            crew.mode = crew.is_trial = true;  // as if after a trial: the first period has helpers
            crew.period = MIN_PERIOD;
            crew.end = 0;
            crew.process = process;
        }
        if (crew.started + 1 < threads) start_helpers(crew, threads);
        return &crew;
    }
    return nullptr;
}

void release_crew(Crew* crew) { __atomic_store_n(&crew->user, 0, __ATOMIC_RELEASE); }

void run_loop(Crew& crew, const Loop& loop, Index threads) {
    crew.random = crew.random * 1664525 + 1013904223;
    const bool is_measured = crew.is_trial || crew.random >> 30 == 0;  // one of four
    const int64_t start = is_measured ? now() : 0;
    const int64_t cpu_start = is_measured ? now(CLOCK_THREAD_CPUTIME_ID) : 0;
    if (is_measured && start >= crew.end) begin_period(crew, start);
    threads = min(threads, crew.started + 1);
    if (threads <= 1) return loop.run(loop.body, 0, loop.count, 0);
    const bool is_shared = crew.mode == 1;
    if (is_shared) publish(crew, loop, threads);
    else loop.run(loop.body, 0, loop.count, 0);
    const Index done = is_shared ? work(crew, 0, crew.number) : loop.count;
    const int64_t cpu_end = is_measured ? now(CLOCK_THREAD_CPUTIME_ID) : 0;
    if (done < loop.count) wait_for_helpers(crew, loop.count - done);
    // If the caller has done nothing, the work is unknown.
    if (is_measured && done) record(crew, now() - start, (cpu_end - cpu_start) * loop.count / done);
}

#else

Crew* acquire_crew(Index) { return nullptr; }
void release_crew(Crew*) {}
void run_loop(Crew&, const Loop& loop, Index) { loop.run(loop.body, 0, loop.count, 0); }

#endif

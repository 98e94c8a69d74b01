// Parallel loops on the OpenMP threads of PyTorch.
//
// A separate thread pool would compete with PyTorch's, whose idle threads spin on the same cores. A
// thread that waits at a barrier yields its core after some microseconds. Loop iterations are
// claimed one by one: each thread first takes its share and then steals from the others, so that a
// thread delayed by other programs holds up little work.
//
// Results do not depend on which thread runs an iteration, since each iteration writes only its
// part of the output.
#pragma once

#include "common.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif !defined(_WIN32) && !defined(__wasm__)
#include <sched.h>
#endif

constexpr int MAX_THREADS = 128;
constexpr int BARRIER_SPINS = 1000;  // polls of a barrier before the thread yields its core

/// Entry points of the OpenMP runtime (GNU ABI) that PyTorch uses. Null if there is none: a team is
/// then one thread.
struct OpenMP {
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel
    int (*thread_num)();
    int (*num_threads)();
};
extern OpenMP OPENMP;

/// Number of claimed iterations of one thread's share, in a cache line of its own.
struct alignas(64) ClaimCounter {
    Index next;
};

/// State that the threads of a team share.
struct TeamState {
    int arrived = 0, phase = 0, sleeping = 0;  // of the barrier
    ClaimCounter claimed[MAX_THREADS] = {};
};

/// Hint to the processor that this is a spin loop.
static inline void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/// One thread's handle on its team. All threads of a team must make the same sequence of calls.
class Team {
    TeamState* state;

  public:
    const int thread, num_threads;

    Team(TeamState* state, int thread, int num_threads)
        : state(state), thread(thread), num_threads(num_threads) {}

    /// Waits until every thread of the team has arrived here.
    void barrier() {
        if (num_threads == 1) return reset();
        const int phase = __atomic_load_n(&state->phase, __ATOMIC_ACQUIRE);
        if (__atomic_add_fetch(&state->arrived, 1, __ATOMIC_ACQ_REL) == num_threads) {
            reset();
            state->arrived = 0;
            __atomic_store_n(&state->phase, phase + 1, __ATOMIC_SEQ_CST);
            wake();
            return;
        }
        for (int i = 0; i < BARRIER_SPINS; i++) {
            if (__atomic_load_n(&state->phase, __ATOMIC_ACQUIRE) != phase) return;
            pause_cpu();
        }
        while (__atomic_load_n(&state->phase, __ATOMIC_ACQUIRE) == phase) sleep(phase);
    }

    /// Calls body(i) once for each i in 0 .. count, on any thread, and waits until all calls have
    /// returned.
    template <class F>
    void parallel_for(Index count, F body) {
        for (int offset = 0; offset < num_threads; offset++) {
            const int owner = (thread + offset) % num_threads;
            const Chunk share(count, owner, num_threads);
            while (true) {
                const Index i = share.begin + __atomic_fetch_add(&state->claimed[owner].next, 1,
                                                                 __ATOMIC_RELAXED);
                if (i >= share.end) break;
                body(i);
            }
        }
        barrier();
    }

    /// Calls body() on one thread while the others wait.
    template <class F>
    void single(F body) {
        parallel_for(1, [&](Index) { body(); });
    }

  private:
    void reset() {
        for (int t = 0; t < num_threads; t++) state->claimed[t].next = 0;
    }
    void wake() {
#if defined(__linux__)
        if (__atomic_load_n(&state->sleeping, __ATOMIC_SEQ_CST))
            syscall(SYS_futex, &state->phase, FUTEX_WAKE_PRIVATE, MAX_THREADS, nullptr, nullptr, 0);
#endif
    }
    void sleep(int phase) {
#if defined(__linux__)
        __atomic_add_fetch(&state->sleeping, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &state->phase, FUTEX_WAIT_PRIVATE, phase, nullptr, nullptr, 0);
        __atomic_sub_fetch(&state->sleeping, 1, __ATOMIC_SEQ_CST);
#elif !defined(_WIN32) && !defined(__wasm__)
        sched_yield();
#endif
    }
};

/// Runs body(team) on up to `threads` threads, each with its own `Team` handle.
template <class F>
void parallel_region(Index threads, F body) {
    TeamState state;
    if (threads <= 1 || !OPENMP.parallel) {
        Team team(&state, 0, 1);
        return body(team);
    }
    struct Region {
        TeamState* state;
        F* body;
        static void run(void* argument) {
            Region* region = (Region*)argument;
            Team team(region->state, OPENMP.thread_num(), OPENMP.num_threads());
            (*region->body)(team);
        }
    } region{&state, &body};
    OPENMP.parallel(Region::run, &region, unsigned(min(threads, MAX_THREADS)), 0);
}

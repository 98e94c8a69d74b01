// Parallel loops on persistent threads.
//
// The calling thread runs everything but the bodies of loops, and never waits for a helper that has
// not begun: helpers claim iterations as they arrive, and the caller takes all that are left. A
// loop of little work runs on the caller only. Next to other programs, helpers may lose their core
// in the middle of an iteration, so that the caller must wait; loops then run without helpers as
// long as that is faster, which is measured (thread_team.cpp).
//
// Results do not depend on the thread that runs an iteration, since each iteration writes only its
// part of the output.
#pragma once

#include "common.h"

constexpr Index MAX_THREADS = 128;
constexpr Index MIN_CYCLES_PER_THREAD = 5000;  // a loop with less work has fewer threads
constexpr Index MIN_CLAIM_CYCLES = 2000;       // work of the iterations that are claimed together
constexpr Index MANY_CYCLES = 1 << 20;         // of an iteration that is worth sharing in any case

/// A loop: calls body for the iterations begin .. end on thread `thread` of the team.
struct Loop {
    void (*run)(void* body, Index begin, Index end, Index thread);
    void* body;
    Index count, claim;  // iterations, and how many are claimed together
};

struct Crew;

/// Returns a free crew with helpers for `threads` threads; null if there is none.
Crew* acquire_crew(Index threads);
void release_crew(Crew* crew);
/// Runs a loop on the calling thread and the helpers that arrive in time; returns when all
/// iterations are done.
void run_loop(Crew& crew, const Loop& loop, Index threads);

/// The threads of a parallel region. Only the calling thread has it.
class Team {
    Crew* crew;  // null: one thread

  public:
    /// Maximum number of threads that run an iteration.
    const Index num_threads;

    Team(Crew* crew, Index num_threads) : crew(crew), num_threads(num_threads) {}

    /// Calls body(i) once for each i in 0 .. count, on any thread, and waits until all calls have
    /// returned. cycles: of the processor, roughly, per iteration.
    template <class F>
    void parallel_for(Index count, Index cycles, F body) {
        parallel_for_with_thread(count, cycles, [&](Index i, Index) { body(i); });
    }

    /// Like `parallel_for`, with body(i, thread), for workspaces of each thread.
    template <class F>
    void parallel_for_with_thread(Index count, Index cycles, F body) {
        const Index threads = min(num_threads, min(count, count * cycles / MIN_CYCLES_PER_THREAD));
        if (!crew || threads <= 1) {
            for (Index i = 0; i < count; i++) body(i, 0);
            return;
        }
        auto run = [](void* body, Index begin, Index end, Index thread) {
            for (Index i = begin; i < end; i++) (*(F*)body)(i, thread);
        };
        run_loop(*crew, {run, &body, count, max(1, MIN_CLAIM_CYCLES / max(1, cycles))}, threads);
    }
};

/// Runs body(team) with a team of up to `threads` threads.
template <class F>
void parallel_region(Index threads, F body) {
    threads = min(threads, MAX_THREADS);
    Crew* crew = threads > 1 ? acquire_crew(threads) : nullptr;
    Team team(crew, crew ? threads : 1);
    body(team);
    if (crew) release_crew(crew);
}

// Properties of parallel loops: every iteration runs once, whichever threads are there in time.
#include <unistd.h>

#include <sys/wait.h>

#include <thread>

#include "test_utils.h"
#include "thread_team.cpp"  // a copy: the library does not export it

namespace {

/// Runs loops of all sizes; returns true if every iteration has run once, on a thread of the team.
bool every_iteration_runs_once(Index threads) {
    bool correct = true;
    for (Index round = 0; round < 300; round++)
        parallel_region(threads, [&](Team& team) {
            const Index count = round % 70, cycles = round % 3 ? MANY_CYCLES : MIN_CLAIM_CYCLES / 3;
            std::vector<int> calls(count), runners(count);
            for (int loop = 1; loop <= 3; loop++)
                team.parallel_for_with_thread(count, cycles, [&](Index i, Index thread) {
                    calls[i]++;
                    runners[i] |= thread < 0 || thread >= team.num_threads;
                });
            for (Index i = 0; i < count; i++) correct &= calls[i] == 3 && !runners[i];
        });
    return correct;
}

void check_true(const char* name, bool value) {
    if (value) return;
    printf("%s\n", name);
    failures++;
}

}  // namespace

void test_threads() {
    // Late helpers of a larger team must not run iterations of a smaller one.
    for (Index threads : {1, 2, 3, 7, 2, 7, 3, 1}) {
        check_true("every iteration runs once", every_iteration_runs_once(threads));
    }
    const int callers = 20;  // more than there are crews
    std::vector<int> correct(callers);
    std::vector<std::thread> running;
    for (int n = 0; n < callers; n++)
        running.emplace_back([&, n] { correct[n] = every_iteration_runs_once(2 + n % 2); });
    for (std::thread& thread : running) thread.join();
    for (int result : correct) check_true("regions at the same time", result);
    // A forked process has none of the threads, not even if it was forked in a region.
    parallel_region(THREADS, [&](Team& team) {
        if (const pid_t child = fork()) {
            int status = -1;
            waitpid(child, &status, 0);
            check_true("forked process", WIFEXITED(status) && WEXITSTATUS(status) == 0);
        } else {
            alarm(60);
            _exit(!every_iteration_runs_once(THREADS));
        }
    });
}

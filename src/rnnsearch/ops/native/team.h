// A team of threads that work through the same function: PyTorch's own, because a second pool would wait, spinning, on
// the same cores. A thread that waits gives way after some microseconds, and work is claimed in parts, each thread its
// own first and then what others have left: beside other programs, one late thread delays little.
//
// Who works on a part never changes a result: parts write what is theirs alone.
#pragma once

#include "plain.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif !defined(_WIN32) && !defined(__wasm__)
#include <sched.h>
#endif

constexpr int MOST_THREADS = 128;
constexpr int SPINS = 1000;  // looks at a barrier before the core is given to others

// GNU's interface of OpenMP regions, which PyTorch's pool has; null where there is none: a team is then one thread.
struct Pool {
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
    int (*number)();
    int (*count)();
};
extern Pool POOL;

struct alignas(64) Claimed {
    Index next;
};

struct Team {
    int arrived = 0, phase = 0, asleep = 0;
    Claimed claimed[MOST_THREADS] = {};
};

static inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

class Member {
    Team* team;

  public:
    const int number, count;

    Member(Team* team, int number, int count) : team(team), number(number), count(count) {}

    // Until every member has come here.
    void wait() {
        if (count == 1) return reset();
        const int phase = __atomic_load_n(&team->phase, __ATOMIC_ACQUIRE);
        if (__atomic_add_fetch(&team->arrived, 1, __ATOMIC_ACQ_REL) == count) {
            reset();
            team->arrived = 0;
            __atomic_store_n(&team->phase, phase + 1, __ATOMIC_SEQ_CST);
            wake();
            return;
        }
        for (int i = 0; i < SPINS; i++) {
            if (__atomic_load_n(&team->phase, __ATOMIC_ACQUIRE) != phase) return;
            relax();
        }
        while (__atomic_load_n(&team->phase, __ATOMIC_ACQUIRE) == phase) sleep(phase);
    }

    // part(p) for each p below `parts`, by whoever is free; returns when all are done.
    template <class F>
    void share(Index parts, F part) {
        for (int other = 0; other < count; other++) {
            const int whose = (number + other) % count;
            const Share share(parts, whose, count);
            while (true) {
                const Index p = share.begin + __atomic_fetch_add(&team->claimed[whose].next, 1, __ATOMIC_RELAXED);
                if (p >= share.end) break;
                part(p);
            }
        }
        wait();
    }

    // run() by one member, the others waiting.
    template <class F>
    void alone(F run) {
        share(1, [&](Index) { run(); });
    }

  private:
    void reset() {
        for (int t = 0; t < count; t++) team->claimed[t].next = 0;
    }
    void wake() {
#if defined(__linux__)
        if (__atomic_load_n(&team->asleep, __ATOMIC_SEQ_CST))
            syscall(SYS_futex, &team->phase, FUTEX_WAKE_PRIVATE, MOST_THREADS, nullptr, nullptr, 0);
#endif
    }
    void sleep(int phase) {
#if defined(__linux__)
        __atomic_add_fetch(&team->asleep, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &team->phase, FUTEX_WAIT_PRIVATE, phase, nullptr, nullptr, 0);
        __atomic_sub_fetch(&team->asleep, 1, __ATOMIC_SEQ_CST);
#elif !defined(_WIN32) && !defined(__wasm__)
        sched_yield();
#endif
    }
};

// body(member) by up to `threads` threads.
template <class F>
void in_team(Index threads, F body) {
    Team team;
    if (threads <= 1 || !POOL.parallel) {
        Member alone(&team, 0, 1);
        return body(alone);
    }
    struct Call {
        Team* team;
        F* body;
        static void run(void* given) {
            Call* call = (Call*)given;
            Member member(call->team, POOL.number(), POOL.count());
            (*call->body)(member);
        }
    } call{&team, &body};
    POOL.parallel(Call::run, &call, unsigned(smaller(threads, MOST_THREADS)), 0);
}

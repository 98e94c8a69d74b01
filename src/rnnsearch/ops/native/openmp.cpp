// Entry points of the OpenMP runtime, set once after the library is loaded.
#include "thread_team.h"

OpenMP OPENMP = {};

EXPORT void set_openmp(void* parallel, void* thread_num, void* num_threads) {
    OPENMP = {(void (*)(void (*)(void*), void*, unsigned, unsigned))parallel, (int (*)())thread_num,
              (int (*)())num_threads};
}

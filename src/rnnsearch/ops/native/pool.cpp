// The threads that teams are made of, given once after loading.
#include "team.h"

Pool POOL = {};

EXPORT void use_pool(void* parallel, void* number, void* count) {
    POOL = {(void (*)(void (*)(void*), void*, unsigned, unsigned))parallel, (int (*)())number, (int (*)())count};
}

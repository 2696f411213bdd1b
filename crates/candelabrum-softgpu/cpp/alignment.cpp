// The check of addresses by their alignment.
#include "alignment.h"

bool misaligned(Stream *s, const char *call, const char *operand, const void *p, size_t multiple) {
    if (!strict() || !multiple || (uintptr_t)p % multiple == 0) return false;
    say("%s: the address of %s is %zu modulo 16, and must be a multiple of %zu", call, operand,
        (size_t)((uintptr_t)p % 16), multiple);
    s->ctx->error = MISALIGNED;
    return true;
}

// Atomic operations on 2, 4 and 8 bytes, each one as a loop of compare and exchange.
#pragma once
namespace softgpu {
template <class T> struct word;
template <> struct word<char[2]> { using t = uint16_t; };
template <> struct word<char[4]> { using t = uint32_t; };
template <> struct word<char[8]> { using t = uint64_t; };
template <class T, class F> inline T atomic(T *at, F f) {
    using W = typename word<char[sizeof(T)]>::t;
    W *p = (W *)at, old = __atomic_load_n(p, __ATOMIC_RELAXED), next;
    T was, now;
    do {
        memcpy((void *)&was, &old, sizeof old);
        now = f(was);
        memcpy(&next, (void *)&now, sizeof next);
    } while (
        !__atomic_compare_exchange_n(p, &old, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    memcpy((void *)&was, &old, sizeof old);
    return was;
}
template <class T> struct same { using t = T; };
} // namespace softgpu
#define SOFTGPU_ATOMIC(name, expr)                                                                 \
    template <class T> inline T name(T *at, typename softgpu::same<T>::t v) {                      \
        return softgpu::atomic(at, [&](T old) -> T { return expr; });                              \
    }
SOFTGPU_ATOMIC(atomicAdd, old + v)
SOFTGPU_ATOMIC(atomicSub, old - v)
SOFTGPU_ATOMIC(atomicExch, ((void)old, v))
SOFTGPU_ATOMIC(atomicMin, v < old ? v : old)
SOFTGPU_ATOMIC(atomicMax, old < v ? v : old)
SOFTGPU_ATOMIC(atomicAnd, old &v)
SOFTGPU_ATOMIC(atomicOr, old | v)
SOFTGPU_ATOMIC(atomicXor, old ^ v)
SOFTGPU_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
SOFTGPU_ATOMIC(atomicDec, old == 0 || old > v ? v : old - 1)
template <class T>
inline T atomicCAS(T *at, typename softgpu::same<T>::t want, typename softgpu::same<T>::t v) {
    return softgpu::atomic(at, [&](T old) -> T { return old == want ? v : old; });
}

// How libcuda calls a kernel by its name: each kernel has an object softgpu_kernel_NAME.
#pragma once
struct softgpu_kernel_t {
    void *(*pack)(void **); // copies the arguments of a launch
    void (*call)(void *);   // one thread, with such a copy
    void (*drop)(void *);
    unsigned bounds; // most threads of a block, by __launch_bounds__
};
namespace softgpu {
template <class T> struct decay1 { using t = std::remove_cv_t<std::remove_reference_t<T>>; };
template <size_t... I> struct seq {};
template <size_t N, size_t... I> struct make : make<N - 1, N - 1, I...> {};
template <size_t... I> struct make<0, I...> { using t = seq<I...>; };
template <size_t I, class T> struct leaf { T v; };
template <class S, class... A> struct pack_t;
template <size_t... I, class... A> struct pack_t<seq<I...>, A...> : leaf<I, A>... {
    pack_t(void **p) : leaf<I, A>{*(A *)p[I]}... { (void)p; }
    template <class F> void run(F f) { f(((leaf<I, A> *)this)->v...); }
};
template <auto F> struct bind;
template <class... A, void (*F)(A...)> struct bind<F> {
    using P = pack_t<typename make<sizeof...(A)>::t, typename decay1<A>::t...>;
    static void *pack(void **p) { return new P(p); }
    static void call(void *p) { ((P *)p)->run(F); }
    static void drop(void *p) { delete (P *)p; }
};
} // namespace softgpu
#define SOFTGPU_KERNEL(name, bounds)                                                               \
    extern "C" __attribute__((used, visibility("default")))                                        \
    const softgpu_kernel_t softgpu_kernel_##name = {softgpu::bind<&name>::pack,                    \
                                                    softgpu::bind<&name>::call,                    \
                                                    softgpu::bind<&name>::drop, bounds};

// Dynamic shared memory: what `extern __shared__ T name[];` becomes (see crucible/sim/source.py).
#ifndef CSIM_SHARED_H
#define CSIM_SHARED_H

// Inside a function: a reference to an array of unknown bound, so that `name`, `&name`, `&name[0]` and decay mean what
// they do in CUDA.
#define CSIM_DYNAMIC_SHARED(NAME, ...) \
    auto& NAME = *reinterpret_cast<__typeof__(__VA_ARGS__)(*)[]>(csim_dynamic_shared())

// At file scope: an object that turns into the running block's memory wherever a pointer is wanted.
namespace csim {
template <class T> struct DynamicShared {
    operator T*() const { return static_cast<T*>(csim_dynamic_shared()); }
    T& operator[](size_t i) const { return static_cast<T*>(csim_dynamic_shared())[i]; }
    T* operator&() const { return static_cast<T*>(csim_dynamic_shared()); }
    T& operator*() const { return *static_cast<T*>(csim_dynamic_shared()); }
    template <class I> T* operator+(I i) const { return static_cast<T*>(csim_dynamic_shared()) + i; }
    template <class U> explicit operator U*() const { return reinterpret_cast<U*>(csim_dynamic_shared()); }
};
}  // namespace csim
#define CSIM_DYNAMIC_SHARED_GLOBAL(NAME, ...) static csim::DynamicShared<__typeof__(__VA_ARGS__)> NAME
#endif

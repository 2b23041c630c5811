// Launching: what `kernel<<<grid, block, smem, stream>>>(args...)` becomes, and the launch functions of the runtime API
// that NVIDIA's header hides from a host compiler.
#ifndef CSIM_LAUNCH_H
#define CSIM_LAUNCH_H

namespace csim {
struct Config {
    dim3 grid, block;
    size_t shared_bytes;
    void* stream;
    Config(dim3 grid, dim3 block) : Config(grid, block, 0, (void*)nullptr) {}
    template <class N> Config(dim3 grid, dim3 block, N bytes) : Config(grid, block, bytes, (void*)nullptr) {}
    template <class N, class S> Config(dim3 grid, dim3 block, N bytes, S&& stream)
        : grid(grid), block(block), shared_bytes((size_t)bytes), stream(to_stream(stream)) {}

 private:
    static void* to_stream(cudaStream_t s) { return (void*)s; }
    static void* to_stream(void* s) { return s; }
    static void* to_stream(int s) { return (void*)(size_t)s; }
    static void* to_stream(long s) { return (void*)s; }
    template <class S> static auto to_stream(const S& s) -> decltype((void*)(cudaStream_t)s) {
        return (void*)(cudaStream_t)s;
    }
};

struct Site {
    const char* kernel;
    const char* args_text;
    const char* file;
    int line;
    const void* function;
    int max_threads;
    const char* kernels;
};

inline void run(const Config& c, const Site& site, bool cooperative, void (*thunk)(void*), void* closure,
                size_t closure_bytes, const void* const* arg_ptrs, const size_t* arg_sizes, int arg_count) {
    csim_launch_info info{};
    info.kernel = site.kernel;
    info.args_text = site.args_text;
    info.file = site.file;
    info.line = site.line;
    info.function = site.function;
    info.max_threads = site.max_threads;
    info.kernels = site.kernels;
    info.grid[0] = c.grid.x, info.grid[1] = c.grid.y, info.grid[2] = c.grid.z;
    info.block[0] = c.block.x, info.block[1] = c.block.y, info.block[2] = c.block.z;
    info.shared_bytes = c.shared_bytes;
    info.stream = c.stream;
    info.cooperative = cooperative;
    info.thunk = thunk;
    info.closure = closure;
    info.closure_bytes = closure_bytes;
    info.arg_ptrs = arg_ptrs;
    info.arg_sizes = arg_sizes;
    info.arg_count = arg_count;
    info.anchor = (const void*)thunk;  // instantiated in the launching module
    if (csim_launch(&info)) throw std::runtime_error(csim_last_message());
}

// The rewritten launch is  csim::launch(Config(...), Site{...}, [&](auto&... a) { kernel(a...); })(args...);
// calling the kernel inside a generic lambda keeps template argument deduction, default arguments and implicit
// conversions.
template <class F> struct Launch {
    Config config;
    Site site;
    F call;
    bool cooperative = false;

    template <class... A> void operator()(A&&... args) const {
        struct Closure {
            const F* call;
            std::tuple<std::decay_t<A>...> args;
        } closure{&call, std::tuple<std::decay_t<A>...>(std::forward<A>(args)...)};
        auto thunk = +[](void* p) CSIM_PLAIN {
            Closure* c = static_cast<Closure*>(p);
            std::apply(*c->call, c->args);
        };
        std::apply(
            [&](auto&... a) {
                const void* ptrs[sizeof...(a) + 1] = {(const void*)std::addressof(a)..., nullptr};
                const size_t sizes[sizeof...(a) + 1] = {sizeof(a)..., 0};
                run(config, site, cooperative, thunk, &closure, sizeof closure, ptrs, sizes, (int)sizeof...(a));
            },
            closure.args);
    }
};
template <class F> Launch<F> launch(const Config& config, const Site& site, F call) { return {config, site, call}; }

// Kernels called through an array of argument pointers.
template <class R, class... P, size_t... I>
CSIM_PLAIN void invoke_with(R (*kernel)(P...), void** args, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<std::remove_cv_t<P>>*>(args[I])...);
}
template <class R, class... P> CSIM_PLAIN void invoke_erased(const void* kernel, void** args) {
    invoke_with(reinterpret_cast<R (*)(P...)>(const_cast<void*>(kernel)), args, std::index_sequence_for<P...>{});
}
// What `(void*)kernel` becomes: the address, with a note of how to call it.
template <class R, class... P> const void* kernel_address(R (*kernel)(P...)) {
    static const size_t sizes[sizeof...(P) + 1] = {sizeof(P)..., 0};
    return csim_register_kernel((const void*)kernel, &invoke_erased<R, P...>, sizes, (int)sizeof...(P));
}
}  // namespace csim

// C++ overloads that cuda_runtime.h offers only under nvcc.
template <class R, class... P>
inline cudaError_t cudaLaunchKernel(R (*kernel)(P...), dim3 grid, dim3 block, void** args, size_t smem = 0,
                                    cudaStream_t s = nullptr) {
    return ::cudaLaunchKernel(csim::kernel_address(kernel), grid, block, args, smem, s);
}
template <class R, class... P>
inline cudaError_t cudaLaunchCooperativeKernel(R (*kernel)(P...), dim3 grid, dim3 block, void** args, size_t smem = 0,
                                               cudaStream_t s = nullptr) {
    return ::cudaLaunchCooperativeKernel(csim::kernel_address(kernel), grid, block, args, smem, s);
}
template <class R, class... P> inline cudaError_t cudaFuncSetAttribute(R (*f)(P...), cudaFuncAttribute attr,
                                                                       int value) {
    return ::cudaFuncSetAttribute((const void*)f, attr, value);
}
template <class R, class... P> inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attrs, R (*f)(P...)) {
    return ::cudaFuncGetAttributes(attrs, (const void*)f);
}
template <class R, class... P> inline cudaError_t cudaFuncSetCacheConfig(R (*f)(P...), cudaFuncCache c) {
    return ::cudaFuncSetCacheConfig((const void*)f, c);
}
template <class T>
inline cudaError_t cudaMemcpyToSymbol(const T& symbol, const void* src, size_t n, size_t offset = 0,
                                      cudaMemcpyKind kind = cudaMemcpyHostToDevice) {
    return ::cudaMemcpyToSymbol((const void*)&symbol, src, n, offset, kind);
}
template <class T>
inline cudaError_t cudaMemcpyToSymbolAsync(const T& symbol, const void* src, size_t n, size_t offset = 0,
                                           cudaMemcpyKind kind = cudaMemcpyHostToDevice, cudaStream_t s = nullptr) {
    return ::cudaMemcpyToSymbolAsync((const void*)&symbol, src, n, offset, kind, s);
}
template <class T>
inline cudaError_t cudaMemcpyFromSymbol(void* dst, const T& symbol, size_t n, size_t offset = 0,
                                        cudaMemcpyKind kind = cudaMemcpyDeviceToHost) {
    return ::cudaMemcpyFromSymbol(dst, (const void*)&symbol, n, offset, kind);
}
template <class T>
inline cudaError_t cudaMemcpyFromSymbolAsync(void* dst, const T& symbol, size_t n, size_t offset = 0,
                                             cudaMemcpyKind kind = cudaMemcpyDeviceToHost, cudaStream_t s = nullptr) {
    return ::cudaMemcpyFromSymbolAsync(dst, (const void*)&symbol, n, offset, kind, s);
}
template <class T> inline cudaError_t cudaGetSymbolAddress(void** p, const T& symbol) {
    return ::cudaGetSymbolAddress(p, (const void*)&symbol);
}
template <class T> inline cudaError_t cudaGetSymbolSize(size_t* n, const T&) {
    *n = sizeof(T);
    return cudaSuccess;
}

// cudaLaunchKernelEx(&config, kernel, args...): NVIDIA's inline version loses the kernel's type, so a macro takes its
// place. Where the text names the kernel, it becomes the first of these, as a launch with <<<>>> does.
extern "C" cudaError_t csim_launch_attributes(const cudaLaunchConfig_t* c, bool* cooperative);
namespace csim {
template <class F, class... A> cudaError_t launch_ex(const Site& site, const cudaLaunchConfig_t* c, F call, A&&... args) {
    bool cooperative = false;
    const cudaError_t refused = csim_launch_attributes(c, &cooperative);
    if (refused != cudaSuccess) return refused;
    const Config config(c->gridDim, c->blockDim, c->dynamicSmemBytes, c->stream);
    Launch<F>{config, site, call, cooperative}(std::forward<A>(args)...);
    return cudaPeekAtLastError();
}
template <class... P, class... A> cudaError_t launch_ex(const cudaLaunchConfig_t* c, void (*kernel)(P...),
                                                        A&&... args) {
    std::tuple<std::decay_t<P>...> values(std::forward<A>(args)...);
    return std::apply(
        [&](auto&... a) {
            void* ptrs[sizeof...(a) + 1] = {(void*)std::addressof(a)..., nullptr};
            return ::cudaLaunchKernelExC(c, kernel_address(kernel), ptrs);
        },
        values);
}
}  // namespace csim
#define cudaLaunchKernelEx csim::launch_ex
#endif

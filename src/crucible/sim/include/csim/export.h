// A kernel as a C function that takes its arguments as an array of pointers: how crucible.sim.kernel calls torch-free
// kernels.
#ifndef CSIM_EXPORT_H
#define CSIM_EXPORT_H

enum { CSIM_COOPERATIVE = 1, CSIM_OPT_IN = 2 };  // how to launch; opt in: to all the shared memory that it asks for

namespace csim {
template <class T> constexpr char kind_of() {
    using U = std::remove_cv_t<std::remove_reference_t<T>>;
    if (std::is_pointer_v<U>) return 'p';
    if (std::is_same_v<U, bool>) return 'b';
    if (std::is_floating_point_v<U>) return 'f';
    if (std::is_integral_v<U> || std::is_enum_v<U>) return std::is_unsigned_v<U> ? 'u' : 'i';
    return 's';  // a struct, passed as bytes
}

template <class... P> struct Signature {
    static const char* describe() {  // "p8 i4 f4"
        static const std::string text = [] {
            std::string s;
            ((s += std::string(s.empty() ? "" : " ") + kind_of<P>() + std::to_string(sizeof(P))), ...);
            return s;
        }();
        return text.c_str();
    }
};
template <class... P> const char* signature_of(void (*)(P...)) { return Signature<P...>::describe(); }

template <class... P> struct ExportedCall {
    void (*kernel)(P...);
    void** args;
    CSIM_PLAIN static void thunk(void* p) {
        auto* c = static_cast<ExportedCall*>(p);
        invoke_with(c->kernel, c->args, std::index_sequence_for<P...>{});
    }
};

template <class... P>
int run_exported(void (*kernel)(P...), const char* name, const unsigned* grid_and_block, size_t smem, void** args,
                 const char* args_text, int how, const char* kernels) {
    if (how & CSIM_OPT_IN) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
    ExportedCall<P...> call{kernel, args};
    const size_t sizes[sizeof...(P) + 1] = {sizeof(P)..., 0};
    csim_launch_info info{};
    info.kernel = name;
    info.args_text = args_text;
    info.file = "";
    for (int i = 0; i < 3; i++) info.grid[i] = grid_and_block[i], info.block[i] = grid_and_block[3 + i];
    info.shared_bytes = smem;
    info.cooperative = how & CSIM_COOPERATIVE;
    info.thunk = &ExportedCall<P...>::thunk;
    info.closure = &call;
    info.closure_bytes = sizeof call;
    info.arg_ptrs = args;
    info.arg_sizes = sizes;
    info.arg_count = (int)sizeof...(P);
    info.function = (const void*)kernel;
    info.anchor = (const void*)info.thunk;
    info.kernels = kernels;
    return csim_launch(&info);
}
}  // namespace csim

#define CSIM_EXPORT(SYMBOL, NAME, ...)                                                                               \
    extern "C" int csim_run_##SYMBOL(const unsigned* grid_and_block, size_t smem, void** args, const char* texts,    \
                                     int how) {                                                                      \
        return csim::run_exported(__VA_ARGS__, NAME, grid_and_block, smem, args, texts, how, CSIM_KERNELS);          \
    }                                                                                                                \
    extern "C" const char* csim_signature_##SYMBOL() { return csim::signature_of(__VA_ARGS__); }
#endif

// How cub's device-wide functions run here: as one simulated kernel of one thread, so that every access is checked.
#pragma once

#include "cub/util.cuh"

namespace cub::detail {
// The two-call protocol: without temporary storage, only say how much is wanted.
inline bool asks_for_size(void* temp, size_t& bytes) {
    if (temp) return false;
    bytes = 1;
    return true;
}
template <class F> inline cudaError_t run_as_kernel(const char* name, cudaStream_t stream, F body) {
    csim::Site site{};
    site.kernel = name;
    site.args_text = "";
    site.file = name;
    csim::launch(csim::Config(dim3(1), dim3(1), 0, stream), site, [](auto& f) { f(); })(body);
    return cudaGetLastError();
}
}  // namespace cub::detail

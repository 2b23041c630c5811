// The error state of the CUDA runtime API.
#pragma once
#include <driver_types.h>
#include <vector_types.h>

#include <cstddef>

namespace csim {

cudaError_t set_last_error(cudaError_t e);   // returns e
cudaError_t peek_last_error();
void set_sticky_error(cudaError_t e);        // stays until csim_reset, as after an illegal access on a chip
cudaError_t sticky_error();

cudaError_t launch_erased(const void* function, dim3 grid, dim3 block, void** args, size_t shared_bytes,
                          cudaStream_t stream, bool cooperative);
}  // namespace csim

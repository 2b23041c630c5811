// The error state of the CUDA runtime API, and the texts of its errors.
#include "cuda_errors.h"

#include <cuda_runtime_api.h>

namespace csim {
namespace {
__thread cudaError_t last_error = cudaSuccess;   // per host thread, as in CUDA
cudaError_t sticky = cudaSuccess;

struct ErrorText {
    cudaError_t error;
    const char *name, *text;
};
#define CSIM_ERROR(NAME, TEXT) {NAME, #NAME, TEXT}
const ErrorText texts[] = {
    CSIM_ERROR(cudaSuccess, "no error"),
    CSIM_ERROR(cudaErrorInvalidValue, "invalid argument"),
    CSIM_ERROR(cudaErrorMemoryAllocation, "out of memory"),
    CSIM_ERROR(cudaErrorInitializationError, "initialization error"),
    CSIM_ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    CSIM_ERROR(cudaErrorInvalidPitchValue, "invalid pitch argument"),
    CSIM_ERROR(cudaErrorInvalidSymbol, "invalid device symbol"),
    CSIM_ERROR(cudaErrorInvalidDevicePointer, "invalid device pointer"),
    CSIM_ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    CSIM_ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    CSIM_ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    CSIM_ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    CSIM_ERROR(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device"),
    CSIM_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    CSIM_ERROR(cudaErrorSymbolNotFound, "named symbol not found"),
    CSIM_ERROR(cudaErrorNotReady, "device not ready"),
    CSIM_ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    CSIM_ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    CSIM_ERROR(cudaErrorLaunchTimeout, "the launch timed out and was terminated"),
    CSIM_ERROR(cudaErrorAssert, "device-side assert triggered"),
    CSIM_ERROR(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped"),
    CSIM_ERROR(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region"),
    CSIM_ERROR(cudaErrorMisalignedAddress, "misaligned address"),
    CSIM_ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    CSIM_ERROR(cudaErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch"),
    CSIM_ERROR(cudaErrorNotSupported, "operation not supported"),
    CSIM_ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    CSIM_ERROR(cudaErrorUnknown, "unknown error"),
};
#undef CSIM_ERROR
}  // namespace

cudaError_t set_last_error(cudaError_t e) { return last_error = e; }
cudaError_t peek_last_error() { return sticky != cudaSuccess ? sticky : last_error; }
void set_sticky_error(cudaError_t e) { sticky = e; }
cudaError_t sticky_error() { return sticky; }

}  // namespace csim

extern "C" {
cudaError_t cudaGetLastError(void) {
    const cudaError_t e = csim::peek_last_error();
    csim::set_last_error(cudaSuccess);
    return e;
}
cudaError_t cudaPeekAtLastError(void) { return csim::peek_last_error(); }
const char* cudaGetErrorString(cudaError_t error) {
    for (const auto& t : csim::texts)
        if (t.error == error) return t.text;
    return "unrecognized error code";
}
const char* cudaGetErrorName(cudaError_t error) {
    for (const auto& t : csim::texts)
        if (t.error == error) return t.name;
    return "unrecognized error code";
}
}

// The CUDA runtime API: memory. Copies know which side is the device and keep track of what has been written.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>

#include "arena.h"
#include "cuda_errors.h"
#include "modules.h"

using namespace csim;

namespace {
std::set<void*> host_allocations;   // pinned memory: host memory that kernels may touch too, so it comes from the arena

cudaError_t fail(cudaError_t e) { return set_last_error(e); }

cudaError_t allocate(void** p, size_t n, const char* tag) {
    if (!p) return fail(cudaErrorInvalidValue);
    *p = nullptr;
    if (n == 0) return cudaSuccess;
    *p = arena.allocate(n, tag);
    return *p ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

bool usable(const void* p, size_t n) {   // a device range must lie inside one live allocation
    if (!arena.base || !arena.contains(p)) return true;
    Allocation* a = arena.find(uintptr_t(p));
    return a && !a->freed && uintptr_t(p) + n <= a->end();
}

void copied(void* to, const void* from, size_t n) {
    if (!arena.base || !arena.contains(to)) return;
    const long hole = arena.contains(from) ? arena.first_uninitialised(from, n) : -1;
    if (hole < 0) {
        arena.mark_written(to, n);
        return;
    }
    // unwritten bytes stay unwritten in the copy
    arena.mark_written(to, size_t(hole));
    Allocation* source = arena.find(uintptr_t(from));
    const size_t offset = uintptr_t(from) - source->base;
    for (size_t i = size_t(hole); i < n; i++)
        if (arena.is_written(*source, offset + i)) arena.mark_written(static_cast<char*>(to) + i, 1);
}

cudaError_t copy(void* to, const void* from, size_t n, cudaMemcpyKind kind) {
    if (cudaError_t stuck = sticky_error()) return stuck;
    if (!n) return cudaSuccess;
    if (!to || !from) return fail(cudaErrorInvalidValue);
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return fail(cudaErrorInvalidMemcpyDirection);
    if (!usable(to, n) || !usable(from, n)) return fail(cudaErrorInvalidValue);
    const bool to_device = arena.base && arena.contains(to), from_device = arena.base && arena.contains(from);
    if (kind == cudaMemcpyHostToDevice && !to_device) return fail(cudaErrorInvalidValue);
    if (kind == cudaMemcpyDeviceToHost && !from_device) return fail(cudaErrorInvalidValue);
    if (kind == cudaMemcpyDeviceToDevice && !(to_device && from_device)) return fail(cudaErrorInvalidValue);
    memmove(to, from, n);
    copied(to, from, n);
    return cudaSuccess;
}

cudaError_t fill(void* p, int value, size_t n) {
    if (cudaError_t stuck = sticky_error()) return stuck;
    if (!n) return cudaSuccess;
    if (!p || !usable(p, n) || !arena.base || !arena.contains(p)) return fail(cudaErrorInvalidValue);
    memset(p, value, n);
    arena.mark_written(p, n);
    return cudaSuccess;
}
}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** p, size_t n) { return allocate(p, n, "cudaMalloc"); }
cudaError_t cudaMallocAsync(void** p, size_t n, cudaStream_t) { return allocate(p, n, "cudaMallocAsync"); }
cudaError_t cudaMallocManaged(void** p, size_t n, unsigned) {
    cudaError_t e = allocate(p, n, "cudaMallocManaged");
    if (*p) arena.mark_written(*p, n);   // the host writes it behind our back
    return e;
}
cudaError_t cudaMallocHost(void** p, size_t n) {
    cudaError_t e = allocate(p, n, "cudaMallocHost");
    if (*p) arena.mark_written(*p, n);
    return e;
}
cudaError_t cudaHostAlloc(void** p, size_t n, unsigned) { return cudaMallocHost(p, n); }
cudaError_t cudaMallocPitch(void** p, size_t* pitch, size_t width, size_t height) {
    *pitch = (width + 511) / 512 * 512;
    return allocate(p, *pitch * height, "cudaMallocPitch");
}
cudaError_t cudaFree(void* p) {
    if (cudaError_t stuck = sticky_error()) return stuck;
    if (!p || arena.release(p)) return cudaSuccess;
    return fail(cudaErrorInvalidValue);
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t) { return cudaFree(p); }
cudaError_t cudaFreeHost(void* p) { return cudaFree(p); }
cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
    *device = host;
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind kind) { return copy(to, from, n, kind); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind kind, cudaStream_t) {
    return copy(to, from, n, kind);
}
cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t n) {
    return copy(to, from, n, cudaMemcpyDeviceToDevice);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t n, cudaStream_t) {
    return copy(to, from, n, cudaMemcpyDeviceToDevice);
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
    if (width > to_pitch || width > from_pitch) return fail(cudaErrorInvalidPitchValue);
    for (size_t row = 0; row < height; row++)
        if (cudaError_t e = copy(static_cast<char*>(to) + row * to_pitch,
                                 static_cast<const char*>(from) + row * from_pitch, width, kind))
            return e;
    return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t) {
    return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind);
}
cudaError_t cudaMemset(void* p, int value, size_t n) { return fill(p, value, n); }
cudaError_t cudaMemsetAsync(void* p, int value, size_t n, cudaStream_t) { return fill(p, value, n); }
cudaError_t cudaMemset2D(void* p, size_t pitch, int value, size_t width, size_t height) {
    for (size_t row = 0; row < height; row++)
        if (cudaError_t e = fill(static_cast<char*>(p) + row * pitch, value, width)) return e;
    return cudaSuccess;
}
cudaError_t cudaMemset2DAsync(void* p, size_t pitch, int value, size_t width, size_t height, cudaStream_t) {
    return cudaMemset2D(p, pitch, value, width, height);
}

// Symbols are ordinary variables of the module; their address is the symbol.
cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t n, size_t offset, cudaMemcpyKind) {
    if (cudaError_t stuck = sticky_error()) return stuck;
    memmove(static_cast<char*>(const_cast<void*>(symbol)) + offset, from, n);
    return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t n, size_t offset, cudaMemcpyKind kind,
                                    cudaStream_t) {
    return cudaMemcpyToSymbol(symbol, from, n, offset, kind);
}
cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t n, size_t offset, cudaMemcpyKind) {
    if (cudaError_t stuck = sticky_error()) return stuck;
    memmove(to, static_cast<const char*>(symbol) + offset, n);
    if (arena.base && arena.contains(to)) arena.mark_written(to, n);
    return cudaSuccess;
}
cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t n, size_t offset, cudaMemcpyKind kind,
                                      cudaStream_t) {
    return cudaMemcpyFromSymbol(to, symbol, n, offset, kind);
}
cudaError_t cudaGetSymbolAddress(void** p, const void* symbol) {
    *p = const_cast<void*>(symbol);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
    *total = size_t(80) << 30;
    const size_t used = arena.bytes_in_use();
    *free_bytes = used < *total ? *total - used : 0;
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
    memset(a, 0, sizeof *a);
    const bool device = arena.base && arena.contains(p);
    a->type = device ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    a->device = 0;
    a->devicePointer = device ? const_cast<void*>(p) : nullptr;
    a->hostPointer = device ? nullptr : const_cast<void*>(p);
    return cudaSuccess;
}
}

// Streams and events. Everything runs at once, but who waited for whom is remembered: work on a side stream that nobody waited
// for is right here and wrong on a chip, so it must be known.
//
// Each stream counts its work. `seen` says how much of every stream's work is ordered before what a stream does next; the host
// (`host`) sees what it synchronised with, and the default stream implicitly orders itself with every blocking stream.
#include <cuda_runtime_api.h>

#include <ctime>
#include <map>
#include <mutex>
#include <string>

#include "abi.h"
#include "cuda_errors.h"
#include "streams.h"

namespace csim {
namespace {

using Seen = std::map<uintptr_t, uint64_t>;   // stream -> how much of its work

struct Stream {
    uint64_t work = 0;
    bool blocking = true;
    std::string last_kernel;
    Seen seen;
};

struct Event {
    timespec at{};
    bool recorded = false;
    Seen seen;
};

std::mutex mutex;
std::map<uintptr_t, Stream> streams;
Seen host;
uintptr_t next_stream = 0x1000;
std::string text;

void merge(Seen& into, const Seen& from) {
    for (const auto& [stream, work] : from)
        if (into[stream] < work) into[stream] = work;
}

Seen snapshot(uintptr_t stream) {
    Seen all = streams[stream].seen;
    all[stream] = streams[stream].work;
    if (!stream)   // the default stream waits for every blocking one
        for (const auto& [other, s] : streams)
            if (s.blocking) all[other] = s.work;
    return all;
}

Event* event_of(cudaEvent_t e) { return reinterpret_cast<Event*>(e); }
cudaError_t state() { return sticky_error(); }

}  // namespace

void note_stream_work(const void* stream, const std::string& kernel) {
    std::lock_guard<std::mutex> lock(mutex);
    Stream& s = streams[uintptr_t(stream)];
    s.seen = snapshot(uintptr_t(stream));
    s.work++;
    s.last_kernel = kernel;
}

}  // namespace csim

using namespace csim;

extern "C" {

// JSON list of side streams with work that neither the given stream nor the host has waited for.
const char* csim_pending_streams(const void* current) {
    std::lock_guard<std::mutex> lock(mutex);
    Seen known = snapshot(uintptr_t(current));
    merge(known, host);
    text = "[";
    for (const auto& [id, s] : streams) {
        if (s.work <= known[id]) continue;
        if (text.size() > 1) text += ",";
        text += "{\"stream\":" + std::to_string(id) + ",\"launches\":" + std::to_string(s.work - known[id]) + ",\"kernel\":\"";
        for (char c : s.last_kernel)
            if (c != '"' && c != '\\' && c >= ' ') text += c;
        text += "\"}";
    }
    return (text += "]").c_str();
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) {
    std::lock_guard<std::mutex> lock(mutex);
    next_stream += 16;
    streams[next_stream].blocking = !(flags & cudaStreamNonBlocking);
    *s = reinterpret_cast<cudaStream_t>(next_stream);
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithFlags(s, 0); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned flags, int) { return cudaStreamCreateWithFlags(s, flags); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }   // its work may still be pending
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    std::lock_guard<std::mutex> lock(mutex);
    merge(host, snapshot(uintptr_t(s)));
    return state();
}
cudaError_t cudaDeviceSynchronize() {
    std::lock_guard<std::mutex> lock(mutex);
    for (const auto& [id, s] : streams) host[id] = s.work;
    return state();
}
cudaError_t cudaStreamQuery(cudaStream_t) { return state(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
    std::lock_guard<std::mutex> lock(mutex);
    merge(streams[uintptr_t(s)].seen, event_of(e)->seen);
    return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t, int* p) {
    *p = 0;
    return cudaSuccess;
}
cudaError_t cudaStreamGetFlags(cudaStream_t s, unsigned* flags) {
    std::lock_guard<std::mutex> lock(mutex);
    *flags = streams[uintptr_t(s)].blocking ? cudaStreamDefault : cudaStreamNonBlocking;
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t f, void* data, unsigned) {
    f(s, state(), data);
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t f, void* data) {
    f(data);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* e) {
    *e = reinterpret_cast<cudaEvent_t>(new Event);
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { return cudaEventCreate(e); }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    delete event_of(e);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    std::lock_guard<std::mutex> lock(mutex);
    clock_gettime(CLOCK_MONOTONIC, &event_of(e)->at);
    event_of(e)->recorded = true;
    event_of(e)->seen = snapshot(uintptr_t(s));
    return state();
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned) { return cudaEventRecord(e, s); }
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    std::lock_guard<std::mutex> lock(mutex);
    merge(host, event_of(e)->seen);
    return state();
}
cudaError_t cudaEventQuery(cudaEvent_t) { return state(); }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
    const Event *a = event_of(from), *b = event_of(to);
    if (!a->recorded || !b->recorded) {
        set_last_error(cudaErrorInvalidResourceHandle);
        return cudaErrorInvalidResourceHandle;
    }
    *ms = float(double(b->at.tv_sec - a->at.tv_sec) * 1e3 + double(b->at.tv_nsec - a->at.tv_nsec) * 1e-6);
    return cudaSuccess;
}
}

// cg::memcpy_async, cg::wait, cg::wait_prior: a group's copy into shared memory, on cp.async. The data is poison until
// the group has waited for it.
#pragma once

#include "cooperative_groups.h"
#include "csim/async.h"

namespace cuda {
template <size_t ALIGNMENT> struct aligned_size_t {
    static constexpr size_t align = ALIGNMENT;
    size_t value;
    explicit aligned_size_t(size_t bytes) : value(bytes) {}
    operator size_t() const { return value; }
};
}  // namespace cuda

namespace cooperative_groups {
namespace details {
// Each thread copies every size()-th piece; pieces are as wide as both addresses allow. Below four bytes there is no
// asynchronous copy on a chip either: such bytes are copied at once.
template <class GROUP> CSIM_CG void copy_bytes(const GROUP& group, char* target, const char* source, size_t bytes) {
    size_t misfit = (size_t)target | (size_t)source;
    size_t piece = misfit % 16 == 0 ? 16 : misfit % 8 == 0 ? 8 : misfit % 4 == 0 ? 4 : 1;
    size_t whole = piece == 1 ? 0 : bytes / piece * piece;
    for (size_t at = group.thread_rank() * piece; at < whole; at += group.size() * piece)
        csim::async::copy(target + at, source + at, (uint32_t)piece, (uint32_t)piece, "memcpy_async");
    for (size_t at = whole + group.thread_rank(); at < bytes; at += group.size()) target[at] = source[at];
    csim::async::commit();
}
}  // namespace details

template <class GROUP, class T, class SIZE>
CSIM_CG void memcpy_async(const GROUP& group, T* target, const void* source, const SIZE& bytes) {
    details::copy_bytes(group, (char*)target, (const char*)source, (size_t)bytes);
}
// With element counts for both sides: the smaller one is copied.
template <class GROUP, class T, class N, class M>
CSIM_CG void memcpy_async(const GROUP& group, T* target, const N& target_count, const T* source,
        const M& source_count) {
    size_t count = (size_t)target_count < (size_t)source_count ? (size_t)target_count : (size_t)source_count;
    details::copy_bytes(group, (char*)target, (const char*)source, count * sizeof(T));
}
template <class GROUP> CSIM_CG void wait(const GROUP& group) {
    csim::async::wait_all();
    group.sync();
}
template <unsigned STAGES, class GROUP> CSIM_CG void wait_prior(const GROUP& group) {
    csim::async::wait_group(STAGES);
    group.sync();
}
}  // namespace cooperative_groups

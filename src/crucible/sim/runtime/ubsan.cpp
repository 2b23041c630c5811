// The functions that g++ -fsanitize=alignment,bounds,signed-integer-overflow calls. They matter on a simulated thread
// only.
//
// An overflowing signed multiplication is index arithmetic gone wrong, or a hash that wraps on purpose. The two look
// alike, so an overflow is only noted at first: it becomes a report if the thread goes on to touch memory out of
// bounds, and at once in a sampled launch at full size unless the same line overflowed at a small size already.
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

#include "bounds.h"
#include "check.h"
#include "overflow.h"
#include "report.h"

namespace csim {
namespace {

struct SourceLocation {
    const char* file;
    uint32_t line, column;
};
struct TypeDescriptor {
    uint16_t kind, info;   // kind 0: integer, info = log2(bits) << 1 | signed
    char name[1];
};
struct TypeMismatch {
    SourceLocation location;
    const TypeDescriptor* type;
    unsigned char log_alignment, check;
};
struct OutOfBounds {
    SourceLocation location;
    const TypeDescriptor *array, *index;
};
struct Overflow {
    SourceLocation location;
    const TypeDescriptor* type;
};

std::set<std::pair<std::string, uint32_t>> wrapping_lines;   // seen to overflow in ordinary launches

long long integer(const TypeDescriptor* type, uintptr_t value) {
    const int bits = 1 << (type->info >> 1);
    if (bits > 64) return 0;
    if (!(type->info & 1) || bits == 64) return (long long)value;
    return (long long)(value << (64 - bits)) >> (64 - bits);
}

std::string bare(const char* quoted) {   // 'float [7]' without the quotes
    std::string text = quoted;
    if (text.size() > 1 && text.front() == '\'' && text.back() == '\'') text = text.substr(1, text.size() - 2);
    return text;
}

Finding at(const SourceLocation& where, const char* code) {
    Finding f;
    f.code = code;
    f.file = where.file ? where.file : "";
    f.line = int(where.line);
    return f;
}

void overflow(const Overflow* data, const char* operation, uintptr_t a, uintptr_t b) {
    if (!active_hot) return;
    RuntimeSection guard;
    const auto line = std::make_pair(std::string(data->location.file), data->location.line);
    Finding f = at(data->location, "index_overflow");
    const int bits = 1 << (data->type->info >> 1);
    f.text = bits > 64 ? format_text("signed %d-bit integer overflow", bits)
                       : format_text("signed integer overflow: %lld %s %lld does not fit %s", integer(data->type, a),
                                     operation, integer(data->type, b), bare(data->type->name).c_str());
    if (launch->sampled) {
        if (!wrapping_lines.count(line)) report(std::move(f));
        return;
    }
    wrapping_lines.insert(line);
    note_overflow(std::move(f));
}

Finding noted;
uint32_t noted_leaf = 0, noted_epoch = 0;
}  // namespace

void note_overflow(Finding f) {
    noted = std::move(f);
    noted_leaf = hot.leaf;
    noted_epoch = hot.epoch;
}
bool overflow_explains(Finding& f) {
    if (!noted_epoch || noted_leaf != hot.leaf || noted_epoch < hot.block_begin) return false;
    Finding better = noted;
    better.text += "; then an " + f.text;
    better.tensor = f.tensor;
    better.has_past = f.has_past;
    better.bytes_past = f.bytes_past;
    f = better;
    return true;
}
void forget_overflow() { noted_epoch = 0; }

}  // namespace csim

using namespace csim;

extern "C" {

void __ubsan_handle_type_mismatch_v1(void* raw, uintptr_t pointer) {
    if (!active_hot) return;
    const TypeMismatch* data = static_cast<TypeMismatch*>(raw);
    const uintptr_t alignment = uintptr_t(1) << data->log_alignment;
    if (pointer == 0 || pointer % alignment == 0 || stacks.contains(pointer)) return;
    in_runtime = true;
    Finding f = at(data->location, "misaligned");
    f.text = format_text("misaligned access: %s needs %zu-byte alignment and the address is %zu bytes off",
                         bare(data->type->name).c_str(), size_t(alignment), size_t(pointer % alignment));
    report(std::move(f));
}

void __ubsan_handle_out_of_bounds(void* raw, uintptr_t index) {
    if (!active_hot) return;
    in_runtime = true;
    const OutOfBounds* data = static_cast<OutOfBounds*>(raw);
    Finding f = at(data->location, "out_of_bounds");
    const long long i = integer(data->index, index);
    const std::string type = bare(data->array->name);
    f.text = format_text("out-of-bounds index %lld into an array of type %s", i, type.c_str());
    const size_t bracket = type.find('[');
    const long long length = bracket == std::string::npos ? 0 : atoll(type.c_str() + bracket + 1);
    if (i < 0 || i >= length * 256 || type.find('[', bracket + 1) != std::string::npos) report(std::move(f));
    note_bad_index(std::move(f), long(i));
    in_runtime = false;
}

void __ubsan_handle_add_overflow(void* d, uintptr_t a, uintptr_t b) { overflow(static_cast<Overflow*>(d), "+", a, b); }
void __ubsan_handle_sub_overflow(void* d, uintptr_t a, uintptr_t b) { overflow(static_cast<Overflow*>(d), "-", a, b); }
void __ubsan_handle_mul_overflow(void* d, uintptr_t a, uintptr_t b) { overflow(static_cast<Overflow*>(d), "*", a, b); }
void __ubsan_handle_negate_overflow(void* d, uintptr_t a) { overflow(static_cast<Overflow*>(d), "negated from", a, 0); }
void __ubsan_handle_divrem_overflow(void*, uintptr_t, uintptr_t) {}
}

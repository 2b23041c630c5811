// Names for addresses in reports.
#include "names.h"

#include <cctype>
#include <cstring>
#include <vector>

#include "engine.h"
#include "modules.h"
#include "report.h"

namespace csim {
namespace {

struct Argument {
    std::string text;
    uintptr_t value;   // a pointer among the argument's bytes
};

// Every pointer that came in with the launch. Accessors and other structs are searched word by word.
std::vector<Argument> pointers() {
    std::vector<Argument> list;
    if (!launch) return list;
    const csim_launch_info& info = *launch->info;
    std::vector<std::string> texts;
    std::string text;
    for (const char* p = info.args_text ? info.args_text : ""; *p; p++) {
        if (*p == '\x1f') texts.push_back(text), text.clear();
        else text += *p;
    }
    texts.push_back(text);
    for (int i = 0; i < info.arg_count; i++) {
        const std::string name = size_t(i) < texts.size() ? texts[size_t(i)] : "";
        for (size_t at = 0; at + 8 <= info.arg_sizes[i]; at += 8) {
            uintptr_t value;
            memcpy(&value, static_cast<const char*>(info.arg_ptrs[i]) + at, 8);
            if (value >= 65536) list.push_back({short_name(name), value});
        }
    }
    return list;
}
}  // namespace

std::string short_name(const std::string& argument) {
    std::string text = argument;
    // (float*)x.data_ptr(), reinterpret_cast<T*>(x.data_ptr<U>()): look inside casts
    for (size_t at; (at = text.find("_cast<")) != std::string::npos;) {
        int depth = 0;
        size_t i = at + 5;
        for (; i < text.size(); i++) {
            if (text[i] == '<') depth++;
            if (text[i] == '>' && --depth == 0) break;
        }
        if (i >= text.size()) break;
        text = text.substr(i + 1);
    }
    for (const char* method : {".data_ptr", ".mutable_data_ptr", ".const_data_ptr", ".packed_accessor", ".accessor",
            ".data<", ".data()",
                               "->data_ptr"}) {
        size_t at = text.find(method);
        if (at != std::string::npos) {
            text.resize(at);
            break;
        }
    }
    while (!text.empty() && strchr("( &*", text[0])) {
        if (text[0] == '(') {   // a C cast, or a bracket left over
            size_t close = text.find(')');
            const bool cast = close != std::string::npos && close + 1 < text.size();
            text = text.substr(cast ? close + 1 : 1);
        } else {
            text = text.substr(1);
        }
    }
    while (!text.empty() && (text.back() == ' ' || text.back() == ')')) text.pop_back();
    // x.defined() ? x : null ... : too much for a name
    if (text.empty() || text.size() > 60) return argument.size() > 60 ? argument.substr(0, 57) + "..." : argument;
    return text;
}

Named name_of(const Allocation& a) {
    Named n;
    for (const Argument& arg : pointers())
        if (arg.value >= a.base && arg.value <= a.end() && !arg.text.empty()) {
            n.tensor = arg.text;
            break;
        }
    if (n.tensor.empty()) n.tensor = a.name;
    n.text = n.tensor.empty() ? "device memory" : "`" + n.tensor + "`";
    return n;
}

Named name_of(uintptr_t address) {
    Named n;
    if (launch && hot.shared.size && address - hot.shared.low < hot.shared.size && launch->module) {
        const size_t offset = address - hot.shared.low + launch->module->shared_low;
        if (const SharedSymbol* s = launch->module->symbol_at(offset)) {
            n.tensor = s->name;
            n.text = format_text("shared array `%s` (byte %zu of %zu)", s->name.c_str(), offset - s->offset, s->size);
            return n;
        }
    }
    if (arena.contains(reinterpret_cast<void*>(address))) {
        const size_t offset = address - arena.base;
        if (offset < Arena::kSharedZone) {
            n.tensor = "shared memory";
            n.text = format_text("dynamic shared memory (byte %zu of %zu)", offset % Arena::kSharedSlot,
                                 launch ? launch->shared_bytes : 0);
            return n;
        }
        Allocation* a = arena.find(address);
        if (a) {
            n = name_of(*a);
            n.text += format_text(" (byte %zu of %zu)", size_t(address - a->base), a->size);
            return n;
        }
    }
    n.text = "a __device__ variable";
    return n;
}

bool is_argument(const Allocation& a) {
    for (const Argument& arg : pointers())
        if (arg.value >= a.base && arg.value < a.base + (a.size ? a.size : 1)) return true;
    return false;
}

Allocation* owner_of(uintptr_t address) {
    Allocation* best = nullptr;
    uintptr_t best_distance = ~uintptr_t(0);
    for (const Argument& arg : pointers()) {
        if (!arena.contains(reinterpret_cast<void*>(arg.value))) continue;
        Allocation* a = arena.find(arg.value);
        if (!a || a->freed) continue;
        const uintptr_t distance = address < a->base ? a->base - address : address - a->end();
        if (distance < best_distance) best = a, best_distance = distance;
    }
    Allocation* near = arena.nearest(address);
    if (!best) return near;
    if (near && near != best) {
        const uintptr_t distance = address < near->base ? near->base - address : address - near->end();
        if (distance < 4096 && best_distance > 1 << 20) return near;   // hard against another tensor: that one is meant
    }
    return best;
}

std::string host_argument(uintptr_t address) {
    std::string best;
    uintptr_t distance = uintptr_t(1) << 32;
    for (const Argument& arg : pointers()) {
        if (arena.contains(reinterpret_cast<void*>(arg.value)) || arg.value > address) continue;
        if (address - arg.value < distance) distance = address - arg.value, best = arg.text;
    }
    return best;
}

}  // namespace csim

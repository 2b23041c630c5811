// Findings: from raw facts to sentences and JSON.
#include "report.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <stdexcept>

#include "abi.h"
#include "engine.h"
#include "modules.h"

namespace csim {
namespace {

struct Report {
    Finding finding;
    std::string message, kernel;
};
std::vector<Finding> raw, raw_suspects;
std::vector<Report> reports, suspects;
Finding held;                // a race, not yet reported
bool race_held = false;
std::string last, last_kind;
std::set<void*> suspected;   // one suspicion per instruction is enough

std::string format_list(const char* format, va_list args) {
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(nullptr, 0, format, again);
    va_end(again);
    std::string text(size_t(n), '\0');
    vsnprintf(&text[0], size_t(n) + 1, format, args);
    return text;
}

void place(Finding& f) {
    if (!current) return;
    f.on_thread = true;
    f.block = current->block->index;
    f.thread = current->index;
}

Report finish(Finding f, const char* kernel, const char* file, int line) {
    if (f.pc && f.file.empty()) {
        SourceLine where = source_line(f.pc);
        f.file = where.file;
        f.line = where.line;
    }
    if (f.file.empty() && file) f.file = file, f.line = line;
    Report r;
    r.kernel = kernel ? kernel : "";
    r.message = "crucible-sim: " + f.text;
    if (kernel && *kernel) r.message += std::string(", in kernel ") + kernel;
    if (!f.file.empty()) r.message += format_text(" at %s:%d", f.file.c_str(), f.line);
    if (f.on_thread)
        r.message += format_text(", block (%u, %u, %u), thread (%u, %u, %u)", f.block.x, f.block.y, f.block.z,
                                 f.thread.x, f.thread.y, f.thread.z);
    std::string source = f.file.empty() ? "" : read_source(f.file, f.line);
    if (!source.empty()) r.message += ": `" + source + "`";
    r.finding = std::move(f);
    return r;
}

std::string to_json(const std::vector<Report>& list) {
    std::string out = "[";
    for (const Report& r : list) {
        const Finding& f = r.finding;
        if (out.size() > 1) out += ", ";
        out += "{\"code\": " + json_string(f.code) + ", \"message\": " + json_string(r.message);
        out += ", \"file\": " + (f.file.empty() ? "null" : json_string(f.file));
        out += ", \"line\": " + (f.file.empty() ? "null" : std::to_string(f.line));
        out += ", \"kernel\": " + json_string(r.kernel);
        out += ", \"block\": " + (f.on_thread ? json_triple(f.block) : "null");
        out += ", \"thread\": " + (f.on_thread ? json_triple(f.thread) : "null");
        out += ", \"tensor\": " + (f.tensor.empty() ? "null" : json_string(f.tensor));
        out += ", \"bytes_past\": " + (f.has_past ? std::to_string(f.bytes_past) : "null") + "}";
    }
    return out + "]";
}
}  // namespace

std::string format_text(const char* format, ...) {
    va_list args;
    va_start(args, format);
    std::string text = format_list(format, args);
    va_end(args);
    return text;
}

std::string json_string(const std::string& text) {
    std::string out = "\"";
    for (unsigned char c : text) {
        if (c == '"' || c == '\\') out += '\\', out += char(c);
        else if (c == '\n') out += "\\n";
        else if (c == '\t') out += "\\t";
        else if (c < 0x20 || c == 0x7f) out += format_text("\\u%04x", c);
        else out += char(c);
    }
    return out + "\"";
}

std::string json_triple(uint3 v) { return format_text("[%u, %u, %u]", v.x, v.y, v.z); }

// A race is held back until its block is through or at its next barrier: threads that part ways at a barrier race too,
// and then the parting is what to report.
void report(Finding f) {
    const bool race = !strncmp(f.code, "race_", 5), parting = strstr(f.code, "_divergence") != nullptr;
    if (race && current) {
        RuntimeSection guard;
        place(f);
        if (!race_held) held = std::move(f);
        race_held = true;
        return;
    }
    in_runtime = true;
    place(f);
    if (race_held && !parting) f = std::move(held);
    race_held = false;
    raw.push_back(std::move(f));
    if (!current) {
        if (launch) launch->failed = true;   // the scheduler itself speaks; the launch will finish the sentence
        else finish_findings(nullptr, nullptr, 0);
        in_runtime = false;
        return;
    }
    abandon();   // in_runtime stays set: the scheduler clears it
}

void report_from_device(const char* code, void* pc, const char* format, ...) {
    in_runtime = true;
    Finding f;
    f.code = code;
    f.pc = pc;
    va_list args;
    va_start(args, format);
    f.text = format_list(format, args);
    va_end(args);
    report(std::move(f));
}

void suspect(Finding f) {
    RuntimeSection guard;
    if (!suspected.insert(f.pc).second) return;
    place(f);
    raw_suspects.push_back(std::move(f));
}

void report_held_race() {
    if (!race_held) return;
    in_runtime = true;
    race_held = false;
    raw.push_back(std::move(held));
    if (current) abandon();
    launch->failed = true;
    in_runtime = false;
}

bool any_filed() { return !raw.empty(); }
const std::string& last_message() { return last; }
const std::string& last_code() { return last_kind; }
void throw_report() { throw std::runtime_error(last); }

void finish_findings(const char* kernel, const char* file, int line) {
    for (Finding& f : raw) {
        reports.push_back(finish(std::move(f), kernel, file, line));
        last = reports.back().message;
        last_kind = reports.back().finding.code;
    }
    raw.clear();
    for (Finding& f : raw_suspects) suspects.push_back(finish(std::move(f), kernel, file, line));
    raw_suspects.clear();
}

void clear_findings() {
    raw.clear();
    raw_suspects.clear();
    reports.clear();
    suspects.clear();
    suspected.clear();
}

std::string reports_json() { return to_json(reports); }
std::string suspects_json() { return to_json(suspects); }

}  // namespace csim

extern "C" {
void csim_fail(const char* code, const char* format, ...) {
    csim::in_runtime = true;
    static const char* const known[] = {
        "out_of_bounds",      "use_after_free",  "host_pointer", "uninitialised_read", "race_shared",
        "race_global",        "barrier_divergence", "warp_divergence", "misaligned",   "index_overflow",
        "deadlock",           "launch_error",    "shared_memory_limit", "kernel_time",
        "unsupported_feature",
    };
    csim::Finding f;
    f.code = "launch_error";
    for (const char* k : known)
        if (std::string(k) == code) f.code = k;
    f.pc = __builtin_return_address(0);
    va_list args;
    va_start(args, format);
    f.text = csim::format_list(format, args);
    va_end(args);
    csim::report(std::move(f));
}

void csim_assert_fail(const char* expression, const char* file, unsigned line, const char* function) {
    if (csim::current) {
        csim::in_runtime = true;
        csim::Finding f;
        f.code = "launch_error";
        f.file = file;
        f.line = int(line);
        f.text = std::string("device-side assertion `") + expression + "` failed";
        csim::report(std::move(f));
    }
    fprintf(stderr, "%s:%u: %s: Assertion `%s' failed.\n", file, line, function ? function : "?", expression);
    abort();
}

void csim_trap(void) {
    if (csim::current) csim::report_from_device("launch_error", __builtin_return_address(0),
                                                "the kernel executed __trap()");
    __builtin_trap();
}

const char* csim_last_message(void) { return csim::last_message().c_str(); }
const char* csim_reports(void) {
    static std::string text;
    text = csim::reports_json();
    return text.c_str();
}
const char* csim_suspects(void) {
    static std::string text;
    text = csim::suspects_json();
    return text.c_str();
}
}

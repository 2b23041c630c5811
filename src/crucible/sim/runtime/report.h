// Findings: filed from device code in raw form, turned into sentences once the launch has been stopped.
#pragma once
#include <vector_types.h>

#include <string>
#include <vector>

namespace csim {

struct Finding {
    const char* code = "";
    std::string text;                  // what happened, without where
    void* pc = nullptr;                // where, unless file and line are known already
    std::string file;
    int line = 0;
    bool on_thread = false;
    uint3 block{}, thread{};
    std::string tensor;                // empty: none
    bool has_past = false;
    long bytes_past = 0;
};

// File a finding about the running thread and stop the launch. Returns when called outside device code, and for races.
void report(Finding f);
void report_held_race();               // at a barrier of the whole block, or its end: a race found before is reported now
void report_from_device(const char* code, void* pc, const char* format, ...) __attribute__((format(printf, 3, 4)));
void suspect(Finding f);               // note it, go on

void finish_findings(const char* kernel, const char* file, int line);   // after a launch: build the messages
bool any_filed();                      // since finish_findings was last called
const std::string& last_message();
const std::string& last_code();
[[noreturn]] void throw_report();      // last_message() as a std::runtime_error
void clear_findings();
std::string reports_json();
std::string suspects_json();
std::string json_string(const std::string& text);
std::string json_triple(uint3 v);
std::string format_text(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace csim

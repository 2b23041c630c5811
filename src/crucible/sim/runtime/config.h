// Settings, from csim_configure.
#pragma once
#include <cstdint>
#include <string>

namespace csim {

enum class Schedule { ascending = 0, descending = 1, random = 2 };

struct Config {
    Schedule schedule = Schedule::ascending;
    uint64_t seed = 1;
    bool checked = true;
    double kernel_seconds = 20;       // processor time one launch may take
    int64_t sample_blocks = 0;        // 0: all
    int64_t block_accesses = 0;       // 0: no limit
    int compute_capability = 90;
    int processors = 0;               // 0: as many as such a chip has. With few, persistent blocks take more turns
    bool strict_shared = false;       // any read of unwritten shared memory is a report, not a suspicion
    bool drop_launches = false;       // log launches but run none: does anything depend on them?
    int poison = -1;                  // byte for fresh shared memory; -1: by schedule, see poison_byte()
    int poison_byte() const;
};

extern Config config;
void configure(const std::string& json);   // throws std::runtime_error on malformed input or an unknown key

}  // namespace csim

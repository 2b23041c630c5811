// Settings, from csim_configure: a flat JSON object.
#include "config.h"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "abi.h"

namespace csim {

Config config;

// A different byte for each schedule: whatever leaks from unwritten shared memory then differs between runs, as a NaN
// (which arithmetic keeps and max() drops), as a large number (which max() keeps) and as a large negative one.
int Config::poison_byte() const {
    if (poison >= 0) return poison;
    return schedule == Schedule::ascending ? 0xff : schedule == Schedule::descending ? 0x7b : 0xfb;
}

namespace {
struct Reader {
    const char* at;
    void space() {
        while (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r') at++;
    }
    bool take(char c) {
        space();
        if (*at != c) return false;
        at++;
        return true;
    }
    std::string string() {
        space();
        if (*at != '"') throw std::runtime_error("crucible-sim: csim_configure: a quoted name was expected");
        const char* from = ++at;
        while (*at && *at != '"') at++;
        std::string text(from, at);
        if (*at) at++;
        return text;
    }
    double value() {   // a number, true, false or null
        space();
        for (auto [word, number] : {std::pair{"true", 1.0}, {"false", 0.0}, {"null", 0.0}}) {
            const std::string w = word;
            if (std::string(at).rfind(w, 0) == 0) {
                at += w.size();
                return number;
            }
        }
        char* end;
        double number = strtod(at, &end);
        if (end == at) throw std::runtime_error("crucible-sim: csim_configure: a number was expected");
        at = end;
        return number;
    }
};
}  // namespace

void configure(const std::string& json) {
    Reader in{json.c_str()};
    Config next = config;
    if (!in.take('{')) throw std::runtime_error("crucible-sim: csim_configure: a JSON object was expected");
    while (!in.take('}')) {
        const std::string key = in.string();
        if (!in.take(':')) throw std::runtime_error("crucible-sim: csim_configure: ':' was expected");
        const double v = in.value();
        if (key == "schedule") next.schedule = Schedule(int(v));
        else if (key == "seed") next.seed = uint64_t(v);
        else if (key == "checked") next.checked = v != 0;
        else if (key == "kernel_seconds") next.kernel_seconds = v;
        else if (key == "sample_blocks") next.sample_blocks = int64_t(v);
        else if (key == "block_accesses") next.block_accesses = int64_t(v);
        else if (key == "compute_capability") next.compute_capability = int(v);
        else if (key == "processors") next.processors = int(v);
        else if (key == "strict_shared") next.strict_shared = v != 0;
        else if (key == "drop_launches") next.drop_launches = v != 0;
        else if (key == "poison") next.poison = int(v);
        else throw std::runtime_error("crucible-sim: csim_configure: unknown setting " + key);
        in.take(',');
    }
    config = next;
}

}  // namespace csim

extern "C" void csim_configure(const char* json) {
    try {
        csim::configure(json);
    } catch (const std::exception& e) {   // called through ctypes: nobody there can catch
        fprintf(stderr, "%s\n", e.what());
    }
}

// Loaded modules: segments, thread-local __shared__ variables, and the way from an instruction to its source line.
#include "modules.h"

#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>

#include "abi.h"

extern char** environ;
extern "C" void* __tls_get_addr(void*);   // glibc; takes {module, offset}

namespace csim {
namespace {

std::mutex modules_mutex;
std::vector<std::unique_ptr<Module>> modules;
std::string source_folder;

Cell* shadow_for(size_t cells) {
    void* p = mmap(nullptr, cells * sizeof(Cell) + 4096, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : static_cast<Cell*>(p);
}

std::string demangle(const std::string& name) {
    int status = 0;
    char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
    std::string result = status == 0 && text ? text : name;
    free(text);
    return result;
}

// The position of the last "::" that is not inside brackets: between a function and its local variable.
size_t last_scope(const std::string& text) {
    int depth = 0;
    for (size_t i = text.size(); i-- > 1;) {
        if (strchr(")>]}", text[i])) depth++;
        if (strchr("(<[{", text[i])) depth--;
        if (depth == 0 && text[i] == ':' && text[i - 1] == ':') return i - 1;
    }
    return std::string::npos;
}

// Is this function (as demangled, perhaps with a return type in front) part of a library? Its thread_local variables
// are not __shared__.
bool library_scope(std::string function) {
    const std::string anonymous = "(anonymous namespace)";
    for (size_t at; (at = function.find(anonymous)) != std::string::npos;)
        function.replace(at, anonymous.size(), "{anonymous}");
    size_t start = 0;
    int depth = 0;
    for (size_t i = 0; i < function.size() && !(depth == 0 && function[i] == '('); i++) {
        if (function[i] == '<') depth++;
        if (function[i] == '>') depth--;
        if (depth == 0 && function[i] == ' ') start = i + 1;   // what came before was a return type
    }
    for (const char* space : {"std::", "pybind11::", "c10::", "at::", "torch::", "caffe2::", "fmt::", "__gnu_cxx::"})
        if (function.compare(start, strlen(space), space) == 0) return true;
    return false;
}

void read_shared_symbols(Module& m) {
    int fd = open(m.path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    struct stat info;
    if (fstat(fd, &info) || info.st_size < long(sizeof(ElfW(Ehdr)))) {
        close(fd);
        return;
    }
    const size_t size = size_t(info.st_size);
    void* map = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (map == MAP_FAILED) return;
    const char* file = static_cast<const char*>(map);
    const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(file);
    const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(file + header->e_shoff);
    if (header->e_shoff && header->e_shoff + sizeof(ElfW(Shdr)) * header->e_shnum <= size)
        // the full table, or the dynamic one of a stripped module
        for (int pass = 0; pass < 2 && m.shared.empty(); pass++)
            for (int i = 0; i < header->e_shnum; i++) {
                if (sections[i].sh_type != (pass == 0 ? SHT_SYMTAB : SHT_DYNSYM)) continue;
                const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(file + sections[i].sh_offset);
                const char* names = file + sections[sections[i].sh_link].sh_offset;
                for (size_t s = 0; s < sections[i].sh_size / sizeof(ElfW(Sym)); s++) {
                    const bool here = symbols[s].st_size && symbols[s].st_shndx != SHN_UNDEF;
                    if (ELF64_ST_TYPE(symbols[s].st_info) != STT_TLS || !here) continue;
                    const std::string mangled = names + symbols[s].st_name, full = demangle(mangled);
                    const size_t split = last_scope(full);
                    const std::string function = split == std::string::npos ? "" : full.substr(0, split);
                    // not a variable of a kernel
                    if (mangled.rfind("_ZZ", 0) != 0 || function.empty() || library_scope(function)) {
                        m.others.push_back({symbols[s].st_value, symbols[s].st_value + symbols[s].st_size});
                        continue;
                    }
                    m.shared.push_back({symbols[s].st_value, symbols[s].st_size, full.substr(split + 2), function});
                }
            }
    munmap(map, size);
    auto lower = [](const SharedSymbol& a, const SharedSymbol& b) { return a.offset < b.offset; };
    std::sort(m.shared.begin(), m.shared.end(), lower);
    if (m.shared.empty()) return;
    // All of the module's thread-local storage: initialisation guards and the like must be recognised for what they
    // are.
    m.shared_low = 0;
    for (const SharedSymbol& s : m.shared) m.shared_high = std::max(m.shared_high, s.offset + s.size);
    for (const auto& range : m.others) m.shared_high = std::max(m.shared_high, range.second);
    const size_t span = m.shared_high - m.shared_low;
    m.words = shadow_for(span / 4 + 2);
    m.bytes = shadow_for(span + 8);
}

struct Find {
    uintptr_t address;
    Module* found;
};

int find_object(dl_phdr_info* object, size_t, void* data) {
    Find& want = *static_cast<Find*>(data);
    bool inside = false;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const auto& h = object->dlpi_phdr[i];
        if (h.p_type == PT_LOAD && want.address - (object->dlpi_addr + h.p_vaddr) < h.p_memsz) inside = true;
    }
    if (!inside) return 0;
    want.found = new Module;
    Module& m = *want.found;
    m.path = object->dlpi_name && *object->dlpi_name ? object->dlpi_name : "/proc/self/exe";
    m.base = object->dlpi_addr;
    m.tls_id = object->dlpi_tls_modid;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const auto& h = object->dlpi_phdr[i];
        if (h.p_type != PT_LOAD) continue;
        uintptr_t low = object->dlpi_addr + h.p_vaddr;
        m.segments.push_back({low & ~uintptr_t(15), low + h.p_memsz, (h.p_flags & PF_W) != 0, nullptr, nullptr});
    }
    return 1;
}

struct ObjectRange {
    uintptr_t low, high;
};
std::vector<ObjectRange> objects;

int collect_objects(dl_phdr_info* object, size_t, void*) {
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const auto& h = object->dlpi_phdr[i];
        const uintptr_t low = object->dlpi_addr + h.p_vaddr;
        if (h.p_type == PT_LOAD) objects.push_back({low, low + h.p_memsz});
    }
    return 0;
}

bool in_objects(uintptr_t address) {
    auto starts_after = [](uintptr_t a, const ObjectRange& r) { return a < r.low; };
    auto it = std::upper_bound(objects.begin(), objects.end(), address, starts_after);
    return it != objects.begin() && address < std::prev(it)->high;
}
}  // namespace

uintptr_t Module::shared_address() const {
    if (!tls_id || shared.empty()) return 0;
    size_t index[2] = {tls_id, 0};
    return uintptr_t(__tls_get_addr(index)) + shared_low;
}

void Module::poison_shared(uintptr_t low, int byte) const {
    for (const SharedSymbol& s : shared) memset(reinterpret_cast<void*>(low + s.offset - shared_low), byte, s.size);
}

const SharedSymbol* Module::symbol_before(size_t offset) const {
    auto starts_after = [](size_t o, const SharedSymbol& s) { return o < s.offset; };
    auto it = std::upper_bound(shared.begin(), shared.end(), offset, starts_after);
    return it == shared.begin() ? nullptr : &*std::prev(it);
}
bool Module::other_thread_local(size_t offset) const {
    for (const auto& range : others)
        if (offset >= range.first && offset < range.second) return true;
    return false;
}
const SharedSymbol* Module::symbol_at(size_t offset) const {
    const SharedSymbol* s = symbol_before(offset);
    return s && offset < s->offset + s->size ? s : nullptr;
}

Module* Module::of(const void* pointer) {
    const uintptr_t address = uintptr_t(pointer);
    std::lock_guard<std::mutex> lock(modules_mutex);
    for (auto& m : modules)
        for (const Segment& s : m->segments)
            if (address >= s.low && address < s.high) return m.get();
    Find want{address, nullptr};
    dl_iterate_phdr(find_object, &want);
    if (!want.found) return nullptr;
    read_shared_symbols(*want.found);
    modules.emplace_back(want.found);
    return want.found;
}

HostMemory classify(uintptr_t address, Segment** segment) {
    std::lock_guard<std::mutex> lock(modules_mutex);
    for (auto& m : modules)
        for (Segment& s : m->segments)
            if (address >= s.low && address < s.high) {
                if (!s.writable) return HostMemory::object;
                if (!s.words) {
                    s.words = shadow_for((s.high - s.low) / 4 + 2);
                    s.bytes = shadow_for(s.high - s.low + 8);
                }
                *segment = &s;
                return HostMemory::data_of_module;
            }
    if (in_objects(address)) return HostMemory::object;
    objects.clear();
    dl_iterate_phdr(collect_objects, nullptr);
    std::sort(objects.begin(), objects.end(), [](const ObjectRange& a, const ObjectRange& b) { return a.low < b.low; });
    return in_objects(address) ? HostMemory::object : HostMemory::none;
}

// ---- source lines ----

namespace {
std::string run_addr2line(const std::string& path, uintptr_t offset) {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC)) return "";
    char number[32];
    snprintf(number, sizeof number, "0x%zx", size_t(offset));
    const char* argv[] = {"addr2line", "-f", "-C", "-i", "-e", path.c_str(), number, nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fds[1], 1);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    pid_t child;
    int failed = posix_spawnp(&child, "addr2line", &actions, nullptr, const_cast<char**>(argv), environ);
    posix_spawn_file_actions_destroy(&actions);
    close(fds[1]);
    std::string text;
    if (!failed) {
        char buffer[4096];
        ssize_t n;
        while ((n = read(fds[0], buffer, sizeof buffer)) > 0) text.append(buffer, size_t(n));
        int status;
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
        }
    }
    close(fds[0]);
    return text;
}

bool library_file(const std::string& file) {
    for (const char* part : {"/csim/", "/crucible_sim.h", "/crucible_c10.h", "/usr/include/", "/usr/lib/",
            "/cuda_runtime/include/",
                             "/torch/include/", "/sim/include/", "/sim/torch/", "??"})
        if (file.find(part) != std::string::npos) return true;
    return false;
}
}  // namespace

SourceLine source_line(const void* pc) {
    static std::map<uintptr_t, SourceLine> cache;
    static std::mutex mutex;
    const uintptr_t address = uintptr_t(pc) - 1;   // the call, not what follows it
    std::lock_guard<std::mutex> lock(mutex);
    auto known = cache.find(address);
    if (known != cache.end()) return known->second;
    SourceLine best;
    if (Module* m = Module::of(reinterpret_cast<void*>(address))) {
        const std::string text = run_addr2line(m->path, address - m->base);
        size_t at = 0;
        bool found = false;
        while (at < text.size() && !found) {
            size_t end = text.find('\n', at);
            if (end == std::string::npos) break;
            size_t end2 = text.find('\n', end + 1);
            if (end2 == std::string::npos) end2 = text.size();
            SourceLine here;
            here.function = text.substr(at, end - at);
            std::string place = text.substr(end + 1, end2 - end - 1);
            size_t note = place.find(" (discriminator");
            if (note != std::string::npos) place.resize(note);
            size_t colon = place.rfind(':');
            if (colon != std::string::npos) {
                here.file = place.substr(0, colon);
                if (here.file.rfind("./", 0) == 0) here.file.erase(0, 2);
                here.line = atoi(place.c_str() + colon + 1);
            }
            found = here.line > 0 && !library_file(here.file);
            if (found || best.file.empty()) best = here;
            at = end2 + 1;
        }
        if (!found && library_file(best.file) && best.file == "??") best = SourceLine();
    }
    cache[address] = best;
    return best;
}

std::string read_source(const std::string& file, int line) {
    std::ifstream in(file);
    const std::string name = file.substr(file.rfind('/') + 1);
    if (!in && !source_folder.empty()) in.open(source_folder + "/" + name);
    if (!in) in.open(name);
    std::string text;
    for (int i = 0; i < line; i++)
        if (!std::getline(in, text)) return "";
    size_t from = text.find_first_not_of(" \t"), to = text.find_last_not_of(" \t\r");
    if (from == std::string::npos) return "";
    text = text.substr(from, to - from + 1);
    if (text.size() > 160) text = text.substr(0, 157) + "...";
    return text;
}

}  // namespace csim

extern "C" void csim_source_folder(const char* path) { csim::source_folder = path ? path : ""; }

extern "C" void csim_module_loaded(const char* path, const char*) {
    // Modules are found at their first launch; nothing needs to be known earlier. Kept so that callers may announce
    // them.
    (void)path;
}

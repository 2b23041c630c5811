// Signals on simulated threads: endless loops (a processor-time timer), stack overflow and wild pointers (SIGSEGV,
// SIGBUS), integer division by zero (SIGFPE). On a simulated thread each becomes a report; elsewhere the signal goes
// where it would have gone.
#include "watchdog.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "bounds.h"
#include "check.h"
#include "config.h"
#include "modules.h"
#include "report.h"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

namespace csim {
namespace {

pthread_t runner_thread;
bool armed = false;
timer_t timer;
pid_t timer_owner = 0;     // the thread (and process) the timer belongs to
pid_t timer_process = 0;
struct sigaction old_segv, old_bus, old_fpe;
int watchdog_signal() { return SIGRTMAX - 3; }

void* program_counter(void* context) {
    auto* c = static_cast<ucontext_t*>(context);
#if defined(__x86_64__)
    return reinterpret_cast<void*>(c->uc_mcontext.gregs[REG_RIP]);
#else
    return reinterpret_cast<void*>(c->uc_mcontext.pc);
#endif
}

bool on_simulated_thread() { return launch && current && pthread_equal(pthread_self(), runner_thread); }

// The fault itself is the instruction, so the address after it is what source_line() expects.
void* after(void* pc) { return static_cast<char*>(pc) + 1; }

void unblock(int signal) {   // the handler is left by a switch of stacks and never returns
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void pass_on(const struct sigaction& old, int signal, siginfo_t* info, void* context) {
    if (old.sa_flags & SA_SIGINFO && old.sa_sigaction) {
        old.sa_sigaction(signal, info, context);
        return;
    }
    if (old.sa_handler == SIG_IGN) return;
    if (old.sa_handler != SIG_DFL) {
        old.sa_handler(signal);
        return;
    }
    sigaction(signal, &old, nullptr);   // back to the default; the faulting instruction runs again and ends the process
}

void on_fault(int signal, siginfo_t* info, void* context) {
    const struct sigaction& old = signal == SIGSEGV ? old_segv : signal == SIGBUS ? old_bus : old_fpe;
    const bool overflow = stacks.in_guard(uintptr_t(info->si_addr));   // may well happen inside one of our functions
    if (!on_simulated_thread() || (in_runtime && !overflow)) {
        pass_on(old, signal, info, context);
        return;
    }
    in_runtime = true;
    unblock(signal);
    const uintptr_t address = uintptr_t(info->si_addr);
    void* pc = after(program_counter(context));
    if (bad_index_waits()) settle_bad_index();   // an index past a local array has wrecked the stack
    if (signal == SIGFPE) report_from_device("index_overflow", pc, "integer division by zero");
    if (overflow)
        report_from_device("out_of_bounds", pc, "stack overflow: a thread needs more than %zu KiB of local memory",
                           StackPool::kSize >> 10);
    report_from_device("out_of_bounds", pc, "the kernel touched address 0x%zx, which is not device memory",
                       size_t(address));
}

bool in_this_library(void* pc) {
    static Module* self = nullptr;
    if (!self) self = Module::of(reinterpret_cast<void*>(&on_simulated_thread));
    for (const Segment& s : self->segments)
        if (uintptr_t(pc) >= s.low && uintptr_t(pc) < s.high) return true;
    return false;
}

void on_time(int, siginfo_t*, void* context) {
    if (!on_simulated_thread()) return;
    // the next access stops it; if there is none, we are back soon
    if (in_runtime || in_this_library(program_counter(context))) {
        stop_requested = 1;
        hot.fast_epoch = ~0u;
        for (Quiet& q : hot.quiet) q = Quiet();
        struct itimerspec soon = {};
        soon.it_value.tv_nsec = 1000000;
        timer_settime(timer, 0, &soon, nullptr);
        return;
    }
    unblock(watchdog_signal());
    out_of_time(after(program_counter(context)));
}

void install_handlers() {
    static bool done = false;
    if (done) return;
    done = true;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    action.sa_sigaction = on_fault;
    sigaction(SIGSEGV, &action, &old_segv);
    sigaction(SIGBUS, &action, &old_bus);
    sigaction(SIGFPE, &action, &old_fpe);
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    action.sa_sigaction = on_time;
    sigaction(watchdog_signal(), &action, nullptr);
}

void ensure_alternate_stack() {   // an overflowing stack cannot hold the handler's frame
    static __thread bool done = false;
    if (done) return;
    done = true;
    stack_t old;
    if (sigaltstack(nullptr, &old) == 0 && !(old.ss_flags & SS_DISABLE)) return;
    stack_t mine;
    mine.ss_size = 64 << 10;
    mine.ss_flags = 0;
    mine.ss_sp = mmap(nullptr, mine.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mine.ss_sp != MAP_FAILED) sigaltstack(&mine, nullptr);
}
double allowed = 0;  // seconds, of the launch that runs
}  // namespace

void out_of_time(void* pc) {
    in_runtime = true;
    stop_requested = 0;
    report_from_device("kernel_time", pc, "the kernel was still running after %.3g s of processor time",
                       allowed);
    __builtin_unreachable();
}

void watchdog_start(double seconds) {
    allowed = seconds;
    install_handlers();
    in_this_library(nullptr);   // finds itself now: the handler must not
    stop_requested = 0;
    ensure_alternate_stack();
    runner_thread = pthread_self();
    const pid_t me = pid_t(syscall(SYS_gettid));
    if (timer_owner != me || timer_process != getpid()) {
        if (timer_owner && timer_process == getpid()) timer_delete(timer);
        struct sigevent event;
        memset(&event, 0, sizeof event);
        event.sigev_notify = SIGEV_THREAD_ID;
        event.sigev_signo = watchdog_signal();
        event.sigev_notify_thread_id = me;
        armed = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer) == 0;
        timer_owner = armed ? me : 0;
        timer_process = getpid();
    }
    if (!armed || seconds <= 0) return;
    struct itimerspec when = {};
    when.it_value.tv_sec = time_t(seconds);
    when.it_value.tv_nsec = long((seconds - double(time_t(seconds))) * 1e9);
    timer_settime(timer, 0, &when, nullptr);
}

void watchdog_stop() {
    if (!armed) return;
    struct itimerspec never = {};
    timer_settime(timer, 0, &never, nullptr);
}

}  // namespace csim

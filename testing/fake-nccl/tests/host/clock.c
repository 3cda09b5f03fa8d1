// SPDX-License-Identifier: Apache-2.0
// A host whose time of day is changed during a window: PLUGIN SECONDS. The plugin calls the host's
// own clock_gettime.
#include "host.h"
#include <sys/syscall.h>

static long set_by;

int clock_gettime(clockid_t clock, struct timespec *now) {
    long result = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += __atomic_load_n(&set_by, __ATOMIC_RELAXED);
    return (int)result;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    load(argv[1]);
    comm = init(0xc0ffee);
    int (*start)(const char *) = function("ncclscope_start");
    int (*is_started)(void) = function("ncclscope_is_started");
    all_reduce(comm, 0);
    if (start("for=2s") != 0) fail("start");
    double begun = seconds();
    wait_ms(300);
    __atomic_store_n(&set_by, atol(argv[2]), __ATOMIC_RELAXED);
    wait_ms(700);
    if (!is_started()) fail("the window ended early");
    all_reduce(comm, 1);
    while (is_started() && seconds() - begun < 8) wait_ms(10);
    double lasted = seconds() - begun;
    if (lasted < 1.9 || lasted > 6) fail("the window ended late");
    nccl->finalize(comm);
    say("survived\n");
    return 0;
}

// SPDX-License-Identifier: Apache-2.0
// More events are lost at once than are kept; a little later an operation hangs, before the
// watchdog has checked.
#include "host.h"

static void *enqueue(uint64_t seq) {
    void *coll = event(comm, 2, NULL, seq);
    nccl->stop(coll);
    return coll;
}

// Processor time of this thread: on a busy machine, a burst timed by the clock would be too short.
static double worked(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    load(argv[1]);
    comm = init(0xc0ffee);
    uint64_t seq = 0;
    while (seq < 200) nccl->stop(event(comm, 64, enqueue(seq++), 0));
    // The lane is full before the drain thread reads it, unless the thread wakes up at that moment.
    // The plugin keeps 1024 losses between two looks of the watchdog. A full lane loses thousands
    // of events, a lane that was read in time none.
    int lost = 0;
    for (int tries = 0; lost < 2048 && tries < 40; tries++) {
        wait_ms(1500);
        lost = 0;
        double until = worked() + 0.05;
        while (worked() < until) {
            void *kernel = event(comm, 64, enqueue(seq++), 0);
            lost += !kernel;
            nccl->stop(kernel);
        }
    }
    for (int i = 0; i < 50; i++) {
        nccl->stop(event(comm, 64, enqueue(seq++), 0));
        wait_ms(2);
    }
    // On a busy machine the lane may still be full.
    void *kernel = NULL;
    for (int tries = 0; !kernel && tries < 500; tries++) {
        void *coll = enqueue(seq++);
        kernel = coll ? event(comm, 64, coll, 0) : NULL;
        if (!kernel) wait_ms(10);
    }
    static char answer[1 << 16];
    int is_hung = 0;
    for (int tries = 0; !is_hung && tries < 150; tries++) {
        wait_ms(100);
        is_hung = ask(argv[3], "why\n", answer, sizeof answer) && strstr(answer, "\"event\":\"hung\"");
    }
    if (!strstr(answer, "events were lost")) fail("nothing was lost");
    if (!is_hung) fail("it is not reported");
    nccl->stop(kernel);
    wait_ms(1500);
    nccl->finalize(comm);
    puts("survived");
    return 0;
}

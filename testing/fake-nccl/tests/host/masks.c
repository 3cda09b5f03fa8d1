// SPDX-License-Identifier: Apache-2.0
// A host that stops recording while a communicator is initialised: PLUGIN TIMES. Prints after how
// many of these initialisations NCCL's mask still requests events that are only requested while
// recording.
#include "host.h"

static int (*start)(const char *), (*stop)(void);
static volatile int turn, done;

static void *stopper(void *times) {
    for (int i = 1; i <= *(int *)times; i++) {
        while (turn != i) {
        }
        // Waits, so that recording stops at different times within `init`.
        for (volatile int n = 0; n < i % 400 * 20; n++) {
        }
        if (stop() != 0) fail("stop");
        done = i;
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int times = atoi(argv[2]), left = 0;
    load(argv[1]);
    start = function("ncclscope_start");
    stop = function("ncclscope_stop");
    comm = init(0xc0ffee);
    pthread_t thread;
    pthread_create(&thread, NULL, stopper, &times);
    for (int i = 1; i <= times; i++) {
        if (start(NULL) != 0) fail("start");
        turn = i;
        void *other = init(i);
        while (done != i) {
        }
        // All but kernel channels (1 << 6).
        left += (__atomic_load_n(&mask, __ATOMIC_RELAXED) & ~64) != 0;
        nccl->finalize(other);
    }
    pthread_join(thread, NULL);
    nccl->finalize(comm);
    dprintf(1, "left %d\nsurvived\n", left);
    return 0;
}

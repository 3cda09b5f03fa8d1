// SPDX-License-Identifier: Apache-2.0
// An operation hangs and is reported; then more events are lost at once than the plugin keeps.
//
// never: the operation never ends. later: it ends after that, and another one follows.
#include "host.h"

static volatile int is_over;
static void *stuck;

// Holds a lane until the end.
static void *hold(void *argument) {
    nccl->stop(event(comm, 1, NULL, 0));
    while (!is_over) wait_ms(10);
    return argument;
}

// No lane is left for this thread.
static void *flood(void *argument) {
    for (int i = 0; i < 5000; i++) event(comm, 64, stuck, 0);
    return argument;
}

static void *enqueue(uint64_t seq) {
    void *coll = event(comm, 2, NULL, seq);
    nccl->stop(coll);
    return coll;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    load(argv[1]);
    comm = init(0xc0ffee);
    for (uint64_t i = 0; i < 3; i++) nccl->stop(event(comm, 64, enqueue(i), 0));
    wait_ms(1500);
    stuck = enqueue(3);
    void *kernel = event(comm, 64, stuck, 0);
    pthread_t threads[270], crowd;
    for (int i = 0; i < 270; i++) {
        if (pthread_create(&threads[i], NULL, hold, NULL) != 0) fail("thread");
        wait_ms(20);
    }
    wait_for_why(argv[3], "\"event\":\"hung\"");
    pthread_create(&crowd, NULL, flood, NULL);
    pthread_join(crowd, NULL);
    wait_for_why(argv[3], "events were lost");
    wait_ms(1500);
    if (strcmp(argv[2], "later") == 0) {
        nccl->stop(kernel);
        nccl->stop(event(comm, 64, enqueue(4), 0));
        wait_ms(2500);
    }
    is_over = 1;
    for (int i = 0; i < 270; i++) pthread_join(threads[i], NULL);
    nccl->finalize(comm);
    puts("survived");
    return 0;
}

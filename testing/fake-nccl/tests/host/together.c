// SPDX-License-Identifier: Apache-2.0
// A host whose threads call for the first time at once, as those of eight GPUs with their proxies:
// PLUGIN THREADS.
#include "host.h"

static pthread_barrier_t gate;

static void *run(void *argument) {
    pthread_barrier_wait(&gate);
    all_reduce(comm, (uint64_t)argument);
    // The thread lives on, as those of a framework do.
    pthread_barrier_wait(&gate);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    long threads = atol(argv[2]);
    pthread_t all[64];
    pthread_barrier_init(&gate, NULL, threads + 1);
    for (long i = 0; i < threads; i++) pthread_create(&all[i], NULL, run, (void *)i);
    load(argv[1]);
    comm = init(0xc0ffee);
    wait_ms(100);
    pthread_barrier_wait(&gate);
    wait_ms(300);
    pthread_barrier_wait(&gate);
    for (long i = 0; i < threads; i++) pthread_join(all[i], NULL);
    nccl->finalize(comm);
    say("survived\n");
    return 0;
}

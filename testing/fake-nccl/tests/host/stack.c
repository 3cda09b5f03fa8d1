// SPDX-License-Identifier: Apache-2.0
// A host whose threads have small stacks: PLUGIN BYTES. One of them creates the first communicator
// and uses all of its stack; another exits the process.
#include "host.h"

static void *begins(void *unused) {
    (void)unused;
    comm = init(0xc0ffee);
    void *second = init(0xbeef);
    all_reduce(comm, 1);
    int (*note)(const char *) = function("ncclscope_mark");
    int (*start)(const char *) = function("ncclscope_start");
    int (*drill)(double) = function("ncclscope_simulate_hang");
    if (note("note") != 0 || start("for=1h") != 0 || drill(0.1) != 0) fail("refused");
    nccl->finalize(second);
    nccl->finalize(comm);
    return NULL;
}

static void *ends(void *unused) {
    (void)unused;
    say("survived\n");
    exit(0);
}

static void run(void *(*body)(void *), size_t bytes) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (pthread_attr_setstacksize(&attributes, bytes) != 0) fail("stack size");
    if (pthread_create(&thread, &attributes, body, NULL) != 0) fail("no thread");
    pthread_join(thread, NULL);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    load(argv[1]);
    // The symbols are not looked up on a small stack: the loader's stack use is not tested.
    function("ncclscope_mark");
    function("ncclscope_start");
    function("ncclscope_simulate_hang");
    run(begins, atol(argv[2]));
    run(ends, atol(argv[2]));
    return 3;
}

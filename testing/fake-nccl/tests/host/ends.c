// SPDX-License-Identifier: Apache-2.0
// A host whose threads call the C functions as they exit, when the thread-local memory of Rust code
// is already destroyed: PLUGIN.
#include "host.h"

static pthread_key_t key;
static int (*note)(const char *);
static int (*step)(uint64_t);
static int (*drill)(double);
static const char *(*error)(void);
static void (*push)(uint64_t);
static void (*pop)(void);
static int rounds;

static void thread_ends(void *value) {
    if (note("as a thread ends") != 0) fail("mark");
    if (step(7) != 0) fail("set_step");
    // A refused call: its message may be lost, but is never NULL.
    if (drill(-1) != 2 || !error()) fail("simulate_hang");
    push(1);
    pop();
    all_reduce(comm, 1000);
    // Sets the key again, also in the last round of destructors.
    if (__atomic_add_fetch(&rounds, 1, __ATOMIC_RELAXED) % 4 != 0) pthread_setspecific(key, value);
}

static void *thread(void *unused) {
    (void)unused;
    pthread_setspecific(key, (void *)1);
    note("first");
    push(3);
    all_reduce(comm, 1);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    // Before the plugin's keys, and after them: destructors run in the order of keys.
    load(argv[1]);
    note = function("ncclscope_mark");
    step = function("ncclscope_set_step");
    drill = function("ncclscope_simulate_hang");
    error = function("ncclscope_error");
    push = function("ncclscope_push_external_id");
    pop = function("ncclscope_pop_external_id");
    comm = init(0xc0ffee);
    pthread_key_create(&key, thread_ends);
    for (int i = 0; i < 8; i++) {
        pthread_t id;
        if (pthread_create(&id, NULL, thread, NULL) != 0) fail("no thread");
        pthread_join(id, NULL);
    }
    nccl->finalize(comm);
    say("survived\n");
    return 0;
}

// SPDX-License-Identifier: Apache-2.0
// A host that creates children by a direct system call, while another thread creates the first
// communicator. The children create communicators too: PLUGIN.
#include "host.h"
#include <sys/syscall.h>

enum { THREADS = 2, LONGEST_S = 20 };

static int phase;

static void child(void) {
    void *own = NULL;
    int its_mask = 0;
    // A child that was created before the parent began to record is a separate process.
    if (nccl->init(&own, 0xc41d, &its_mask, "child", 1, 2, 0, NULL) != 0 || !own) _exit(5);
    nccl->finalize(own);
    // Not exit: a direct system call copies the dynamic linker's lock as it is, and exit takes it.
    _exit(0);
}

// Waits for a child and returns its status. Kills a child that hangs: in `init`, all signals except
// SIGKILL are blocked.
static int end_of(pid_t pid) {
    int status;
    for (int ms = 0; ms < LONGEST_S * 1000; ms++) {
        if (waitpid(pid, &status, WNOHANG) == pid) return status;
        wait_ms(1);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return status;
}

static void *forks(void *unused) {
    (void)unused;
    // A direct system call copies the allocator's locks as they are, and a thread's first
    // allocation takes a lock that the other threads share.
    free(malloc(1));
    while (__atomic_load_n(&phase, __ATOMIC_ACQUIRE) == 0) {
    }
    while (__atomic_load_n(&phase, __ATOMIC_ACQUIRE) == 1) {
        pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (pid < 0) fail("clone");
        if (pid == 0) child();
        if (end_of(pid) != 0) fail("a child hangs or dies");
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    load(argv[1]);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, forks, NULL) != 0) fail("no thread");
    wait_ms(5);
    __atomic_store_n(&phase, 1, __ATOMIC_RELEASE);
    comm = init(0xc0ffee);
    wait_ms(20);
    __atomic_store_n(&phase, 2, __ATOMIC_RELEASE);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    all_reduce(comm, 1);
    nccl->finalize(comm);
    say("survived\n");
    return 0;
}

// SPDX-License-Identifier: Apache-2.0
// A busy host that forks children which call the C functions and exit normally, like the workers of
// a PyTorch DataLoader: PLUGIN. Prints how long the slowest child took, ms.
#include "host.h"
#include <sys/syscall.h>

enum { THREADS = 4, CHILDREN = 40, LONGEST_S = 20 };

static int over;
static int (*note)(const char *);
static int (*step)(uint64_t);
static int (*start)(const char *);
static int (*stop)(void);
static int (*dump)(const char *);
static int (*listen_to)(void (*)(const char *, void *), void *);
static int (*drill)(double);

static void *busy(void *unused) {
    (void)unused;
    for (int i = 0; !__atomic_load_n(&over, __ATOMIC_RELAXED); i++) {
        all_reduce(comm, i);
        if (i % 16 == 0) note("busy");
        if (i % 64 == 0) usleep(50);
    }
    return NULL;
}

static void told(const char *json, void *user) {
    (void)json;
    (void)user;
}

static void child(int by_hand) {
    // Kills the child if it hangs.
    alarm(LONGEST_S);
    if (note("child") != 1 || step(1) != 1 || listen_to(told, NULL) != 1 || dump(NULL) != 1 ||
        start(NULL) != 1 || stop() != 1 || drill(1) != 1)
        _exit(5);
    if (!by_hand) {
        all_reduce(comm, 1);
        void *own = init(0xc41d);
        nccl->finalize(own);
    }
    exit(0);
}

static double fork_once(int by_hand) {
    double begun = seconds();
    // A direct system call runs no pthread_atfork handler.
    pid_t pid = by_hand ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (pid < 0) fail("fork");
    if (pid == 0) child(by_hand);
    int status;
    while (waitpid(pid, &status, 0) == -1 && errno == EINTR) {
    }
    if (status != 0) {
        dprintf(2, "host: a child's status is %#x\n", status);
        _exit(3);
    }
    return seconds() - begun;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    load(argv[1]);
    note = function("ncclscope_mark");
    step = function("ncclscope_set_step");
    start = function("ncclscope_start");
    stop = function("ncclscope_stop");
    dump = function("ncclscope_dump");
    listen_to = function("ncclscope_on_hang");
    drill = function("ncclscope_simulate_hang");
    comm = init(0xc0ffee);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, busy, NULL) != 0) fail("no thread");
    wait_ms(200);
    double slowest = 0;
    for (int i = 0; i < CHILDREN; i++) {
        double took = fork_once(i % 4 == 3);
        if (took > slowest) slowest = took;
    }
    __atomic_store_n(&over, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    nccl->finalize(comm);
    printf("slowest %.0f\nsurvived\n", slowest * 1000);
    return 0;
}

// SPDX-License-Identifier: Apache-2.0
// A host whose signal handler calls exit, wherever the thread is: PLUGIN WHAT US.
#include "host.h"
#include <sys/time.h>

static void ends(int number) {
    (void)number;
    // The exit may take any time; if it hangs, the alarm kills the process.
    signal(SIGALRM, SIG_DFL);
    alarm(20);
    say("survived\n");
    exit(0);
}

static void end_in(long us) {
    struct itimerval once = {{0, 0}, {0, us}};
    struct sigaction action = {.sa_handler = ends, .sa_flags = SA_NODEFER};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &once, NULL);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    const char *what = argv[2];
    long us = atol(argv[3]);
    load(argv[1]);
    int (*note)(const char *) = function("ncclscope_mark");
    int (*step)(uint64_t) = function("ncclscope_set_step");
    int (*start)(const char *) = function("ncclscope_start");
    int (*stop)(void) = function("ncclscope_stop");
    if (strcmp(what, "first") == 0) end_in(us);
    comm = init(0xc0ffee);
    if (strcmp(what, "first") != 0) end_in(us);
    for (uint64_t i = 0;; i++) {
        if (strcmp(what, "mark") == 0) note("x");
        if (strcmp(what, "step") == 0) step(i);
        if (strcmp(what, "windows") == 0) {
            start(NULL);
            stop();
        }
        if (strcmp(what, "communicators") == 0) {
            void *own = init(0x100 + i);
            nccl->finalize(own);
        }
        if (strcmp(what, "first") == 0) wait_ms(1);
    }
}

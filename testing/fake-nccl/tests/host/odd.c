// SPDX-License-Identifier: Apache-2.0
// A host that changes its own state after its first communicator, and then continues: PLUGIN WHAT
// DIRECTORY. Prints `cpu`, and the CPU time that its threads used while it was idle, ms of two
// seconds.
#include "host.h"
#include <grp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>

enum { OPERATIONS = 3000 };

static int is(const char *what, const char *word) { return strcmp(what, word) == 0; }

static void limit(int resource, rlim_t bytes) {
    struct rlimit limit = {bytes, bytes};
    if (setrlimit(resource, &limit) != 0) fail("setrlimit");
}

static long alarms;

static void came(int signal) {
    (void)signal;
    alarms++;
}

// A signal repeatedly interrupts system calls of the threads that receive it.
static void storm(void) {
    struct sigaction action = {.sa_handler = came};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 200}, {0, 200}};
    setitimer(ITIMER_REAL, &often, NULL);
}

static double used(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return use.ru_utime.tv_sec + use.ru_stime.tv_sec +
           (use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}

static void do_it(const char *what, const char *directory) {
    if (is(what, "nothing")) return;
    if (is(what, "storm")) return storm();
    if (is(what, "no-files")) return limit(RLIMIT_NOFILE, 0);
    if (is(what, "no-memory")) {
        // The current size of the process, plus a megabyte.
        long pages = 0;
        FILE *statm = fopen("/proc/self/statm", "r");
        if (!statm || fscanf(statm, "%ld", &pages) != 1) fail("statm");
        fclose(statm);
        return limit(RLIMIT_AS, pages * 4096 + (1 << 20));
    }
    if (is(what, "no-stack")) return limit(RLIMIT_STACK, 64 << 10);
    if (is(what, "locked")) {
        if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) fail("mlockall");
        return;
    }
    if (is(what, "root-is-elsewhere")) {
        if (chroot(directory) != 0 || chdir("/") != 0) fail("chroot");
        return;
    }
    if (is(what, "other-user")) {
        if (setgroups(0, NULL) != 0 || setgid(65534) != 0 || setuid(65534) != 0) fail("setuid");
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        return;
    }
    fail("what?");
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    const char *what = argv[2];
    if (is(what, "storm-first")) storm();
    load(argv[1]);
    comm = init(0xc0ffee);
    int (*note)(const char *) = function("ncclscope_mark");
    int (*step)(uint64_t) = function("ncclscope_set_step");
    int (*dump)(const char *) = function("ncclscope_dump");
    int (*drill)(double) = function("ncclscope_simulate_hang");
    all_reduce(comm, 0);
    wait_ms(300);
    if (!is(what, "storm-first")) do_it(what, argv[3]);
    double before = used();
    wait_ms(2000);
    double after = used();
    for (int i = 1; i < OPERATIONS; i++) {
        all_reduce(comm, i);
        if (i % 100 == 0) {
            note("mark");
            step(i);
            wait_ms(10);
        }
    }
    drill(1);
    dump(NULL);
    void *second = init(0xbeef);
    all_reduce(second, 0);
    wait_ms(1500);
    nccl->finalize(second);
    nccl->finalize(comm);
    if (strncmp(what, "storm", 5) == 0 && alarms < 100) fail("no storm");
    printf("cpu %.0f\nsurvived\n", (after - before) * 1000);
    return 0;
}

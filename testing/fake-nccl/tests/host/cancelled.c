// SPDX-License-Identifier: Apache-2.0
// A host that cancels threads while they are in the plugin, and checks `errno`: PLUGIN.
#include "host.h"

enum { THREADS = 8 };

static int (*note)(const char *);
static int (*dump)(const char *);
static int (*start)(const char *);
static int (*stop)(void);

static void *first(void *unused) {
    (void)unused;
    comm = init(0xc0ffee);
    for (;;) pause();
    return NULL;
}

static void *dumps(void *unused) {
    (void)unused;
    for (;;) {
        dump(NULL);
        pthread_testcancel();
    }
    return NULL;
}

static void *windows(void *unused) {
    (void)unused;
    for (;;) {
        start(NULL);
        stop();
        // A thread exits at its next cancellation point outside the plugin.
        pthread_testcancel();
    }
    return NULL;
}

static void *communicators(void *unused) {
    (void)unused;
    for (int i = 0;; i++) {
        void *own = init(0x100 + i);
        nccl->finalize(own);
        pthread_testcancel();
    }
    return NULL;
}

static void cancel(void *(*body)(void *), long us) {
    pthread_t thread;
    void *result;
    struct timespec until;
    if (pthread_create(&thread, NULL, body, NULL) != 0) fail("no thread");
    usleep(us);
    pthread_cancel(thread);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    if (pthread_timedjoin_np(thread, &result, &until) != 0) fail("a thread does not end");
    if (result != PTHREAD_CANCELED) fail("a thread ended otherwise");
}

static void kept(const char *what) {
    if (errno != EXDEV) fail(what);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    load(argv[1]);
    note = function("ncclscope_mark");
    dump = function("ncclscope_dump");
    start = function("ncclscope_start");
    stop = function("ncclscope_stop");
    cancel(first, 2000);
    if (!comm) fail("init was left half way");
    for (int i = 0; i < THREADS; i++) {
        cancel(windows, 1000 + i * 300);
        cancel(communicators, 1000 + i * 300);
        if (i % 4 == 0) cancel(dumps, 1000 + i * 300);
    }
    errno = EXDEV;
    void *second = init(0xbeef);
    kept("init changes errno");
    dump("/dev/null/nowhere");
    kept("a dump changes errno");
    note("note");
    kept("a mark changes errno");
    nccl->finalize(second);
    kept("finalize changes errno");
    all_reduce(comm, 1);
    nccl->finalize(comm);
    say("survived\n");
    return 0;
}

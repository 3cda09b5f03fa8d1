// SPDX-License-Identifier: Apache-2.0
// Recording is stopped or sampled while operations run.
//
// settles: an operation is enqueued, recording is stopped, and its kernel starts 11 s later.
// stops: recording is stopped, and then an operation hangs; `why` is asked during that time.
// samples: as `stops`, but one operation in 16 is recorded.
// silent: recording is stopped and started, and then operations report only their enqueueing.
#include "host.h"

static void kernel(void *coll) { nccl->stop(event(comm, 64, coll, 0)); }

static void *enqueue(uint64_t seq) {
    void *coll = event(comm, 2, NULL, seq);
    nccl->stop(coll);
    return coll;
}

static void print_why(const char *folder) {
    char answer[4096];
    if (!ask(folder, "why\n", answer, sizeof answer)) fail("why");
    printf("why %s", answer);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    load(argv[1]);
    comm = init(0xc0ffee);
    int (*stop)(void) = function("ncclscope_stop");
    int (*start)(const char *) = function("ncclscope_start");
    const char *what = argv[2], *control = argv[3];
    if (strcmp(what, "silent") == 0) {
        if (stop() != 0) fail("stop");
        wait_for_why(control, "recording is stopped");
        if (start(NULL) != 0) fail("start");
        for (uint64_t i = 0; i < 3; i++) enqueue(i);
        wait_for_why(control, "reports only that");
    } else {
        for (uint64_t i = 0; i < 3; i++) kernel(enqueue(i));
        wait_ms(1500);
        void *late = strcmp(what, "settles") == 0 ? enqueue(3) : NULL;
        int is_done = what[1] == 'a' ? start("sample=16") : stop();
        if (is_done != 0) fail("stop");
        if (late) {
            wait_ms(11000);
            kernel(late);
            wait_ms(3500);
        } else {
            event(comm, 64, enqueue(5), 0);
            wait_ms(3500);
            // A window; a report is not repeated.
            if (start(NULL) != 0) fail("start");
            wait_ms(1200);
            is_done = what[1] == 'a' ? start("sample=16") : stop();
            if (is_done != 0) fail("stop");
            wait_ms(1200);
            print_why(control);
        }
    }
    nccl->finalize(comm);
    puts("survived");
    return 0;
}

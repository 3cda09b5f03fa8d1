// SPDX-License-Identifier: Apache-2.0
// A host that limits its file size after the first communicator: PLUGIN BYTES.
#include "host.h"
#include <sys/resource.h>

// Waits until the recording is there: the writer thread creates it.
static void wait_for_recording(void) {
    const char *folder = getenv("NCCLSCOPE_DIR");
    for (int tries = 0; folder && tries < 1000; tries++) {
        DIR *dir = opendir(folder);
        int is_there = 0;
        for (struct dirent *entry; dir && (entry = readdir(dir));) {
            char path[4096];
            struct stat status;
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
            is_there |= strstr(entry->d_name, ".nscope") && stat(path, &status) == 0 && status.st_size > 0;
        }
        if (dir) closedir(dir);
        if (is_there) break;
        wait_ms(10);
    }
    wait_ms(50);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    load(argv[1]);
    comm = init(0xc0ffee);
    int (*note)(const char *) = function("ncclscope_mark");
    int (*step)(uint64_t) = function("ncclscope_set_step");
    int (*dump)(const char *) = function("ncclscope_dump");
    wait_for_recording();
    struct rlimit limit = {atol(argv[2]), atol(argv[2])};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) fail("setrlimit");
    // A pending signal of the host stays pending, whatever the plugin does.
    sigset_t own, pending;
    sigemptyset(&own);
    sigaddset(&own, SIGXFSZ);
    sigprocmask(SIG_BLOCK, &own, NULL);
    raise(SIGXFSZ);
    note("with a signal that waits");
    sigpending(&pending);
    if (!sigismember(&pending, SIGXFSZ)) fail("the host's own signal is gone");
    struct timespec at_once = {0, 0};
    sigtimedwait(&own, NULL, &at_once);
    sigprocmask(SIG_UNBLOCK, &own, NULL);
    for (int i = 0; i < 2000; i++) {
        all_reduce(comm, i);
        if (i % 100 == 0) {
            note("mark");
            step(i);
        }
    }
    if (dump(NULL) != 3 && limit.rlim_cur == 0) fail("a dump where no file can be written is refused");
    void *second = init(0xbeef);
    wait_ms(300);
    nccl->finalize(second);
    nccl->finalize(comm);
    say("survived\n");
    return 0;
}

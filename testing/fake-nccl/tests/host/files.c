// SPDX-License-Identifier: Apache-2.0
// A host that closes all files except the standard ones after its first communicator, as daemons
// do, and opens files and a socket, which get the free numbers, including the plugin's: PLUGIN
// DIRECTORY CONTROL_DIRECTORY.
#include "host.h"
#include <sys/resource.h>
#include <sys/syscall.h>

enum { FILES = 1200, BYTES = 1 << 16 };

static int files[FILES];
static int listener = -1;
static char word[] = "the host's own\n";
static struct sockaddr_un address = {.sun_family = AF_UNIX};

static void check(const char *when) {
    char text[BYTES];
    for (int i = 0; i < FILES; i++) {
        if (files[i] < 0) continue;
        struct stat is;
        if (fstat(files[i], &is) != 0) fail(when);
        ssize_t length = pread(files[i], text, sizeof text, 0);
        if (length != (ssize_t)strlen(word) || memcmp(text, word, length) != 0 ||
            is.st_size != length) {
            dprintf(2, "host: %s: file %d has %ld bytes\n", when, files[i], (long)is.st_size);
            _exit(3);
        }
    }
    if (listener < 0) return;
    int to = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(to, (void *)&address, sizeof address) != 0) fail("its socket is gone");
    wait_ms(150);
    int from = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    if (from < 0) fail("its connection was taken");
    close(from);
    close(to);
}

// Runs after the plugin's handler, since it was registered before.
static void at_end(void) {
    check("at the end");
    say("survived\n");
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    struct rlimit limit = {4096, 4096};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) fail("setrlimit");
    atexit(at_end);
    load(argv[1]);
    comm = init(0xc0ffee);
    wait_ms(100);
    for (int i = 0; i < 100; i++) all_reduce(comm, i);
    wait_ms(300);
    if (syscall(SYS_close_range, 3, ~0U, 0) != 0) fail("close_range");
    for (int i = 0; i < FILES; i++) {
        char path[256];
        snprintf(path, sizeof path, "%.200s/own-%d", argv[2], i);
        int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
        if (file < 0 || write(file, word, strlen(word)) < 0) fail("open");
        files[i] = file;
        // A listening socket may get the number of the plugin's socket.
        if (file == atoi(getenv("SOCKET"))) {
            close(file);
            files[i] = -1;
            snprintf(address.sun_path, sizeof address.sun_path, "%.80s/socket", argv[2]);
            listener = socket(AF_UNIX, SOCK_STREAM, 0);
            if (bind(listener, (void *)&address, sizeof address) != 0 || listen(listener, 9) != 0)
                fail("listen");
        }
    }
    // Starts threads, so that lanes are added, and makes a mark, a step and a dump.
    int (*note)(const char *) = function("ncclscope_mark");
    int (*dump)(const char *) = function("ncclscope_dump");
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 400; i++) all_reduce(comm, round * 1000 + i);
        note("round");
        wait_ms(60);
    }
    if (dump(NULL) != 0) fail("the dump is refused");
    // The first call uses the closed socket, and makes the plugin notice.
    wait_for_status(argv[3]);
    check("while it runs");
    void *second = init(0xbeef);
    nccl->finalize(second);
    nccl->finalize(comm);
    check("after the last communicator");
    return 0;
}

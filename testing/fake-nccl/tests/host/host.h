// SPDX-License-Identifier: Apache-2.0
// Common code of the hosts in C: they load the plugin like NCCL, and play callbacks of API v6.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    const char *name;
    int (*init)(void **, uint64_t, int *, const char *, int, int, int, void *);
    int (*start)(void *, void **, void *);
    int (*stop)(void *);
    int (*record)(void *, int, void *);
    int (*finalize)(void *);
} table;

// The library's handle, the activation mask, the function table, one communicator.
static void *library;
static int mask;
static table *nccl;
static void *comm;

static inline void fail(const char *what) {
    dprintf(2, "host: %s\n", what);
    _exit(3);
}

// Loads the plugin; no communicator yet.
static inline void load(const char *path) {
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail(dlerror());
    nccl = dlsym(library, "ncclProfiler_v6");
    if (!nccl) fail(dlerror());
}

// Creates another communicator.
static inline void *init(uint64_t hash) {
    void *context = NULL;
    if (nccl->init(&context, hash, &mask, "host", 1, 2, 0, NULL) != 0 || !context) fail("init");
    return context;
}

// A function of the plugin's C interface.
static inline void *function(const char *name) {
    void *found = dlsym(library, name);
    if (!found) fail(name);
    return found;
}

static inline void *event(void *context, uint64_t type, void *parent, uint64_t seq) {
    char descr[112] = {0};
    void *handle = (void *)0xdead;
    memcpy(descr, &type, 8);
    memcpy(descr + 8, &parent, 8);
    if (type == 2) {
        const char *func = "AllReduce", *datatype = "ncclFloat32", *algo = "RING", *proto = "SIMPLE";
        uint64_t count = 1024;
        memcpy(descr + 24, &seq, 8);
        memcpy(descr + 32, &func, 8);
        memcpy(descr + 56, &count, 8);
        memcpy(descr + 72, &datatype, 8);
        descr[80] = 1;
        memcpy(descr + 88, &algo, 8);
        memcpy(descr + 96, &proto, 8);
    }
    if (type == 8) {
        int pid = getpid();
        memcpy(descr + 24, &pid, 4);
        descr[28] = 0;
    }
    if (nccl->start(context, &handle, descr) != 0 || handle == (void *)0xdead) fail("startEvent");
    return handle;
}

// An AllReduce with one step of its proxy.
static inline void all_reduce(void *context, uint64_t seq) {
    char arguments[16] = {0};
    void *coll = event(context, 2, NULL, seq);
    void *op = event(context, 8, coll, 0);
    void *step = event(context, 16, op, 0);
    nccl->record(step, 8, arguments);
    nccl->stop(step);
    nccl->stop(op);
    nccl->stop(coll);
}

static inline void wait_ms(long ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) == -1 && errno == EINTR) {
    }
}

static inline double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static inline void say(const char *line) {
    if (write(1, line, strlen(line)) < 0) _exit(4);
}

// Sends a request to this process itself, through the control socket in `folder`. False without an
// answer.
static inline int ask(const char *folder, const char *request, char *answer, size_t size) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    DIR *dir = opendir(folder);
    struct dirent *entry;
    while (dir && (entry = readdir(dir))) {
        if (strstr(entry->d_name, ".sock"))
            snprintf(address.sun_path, sizeof address.sun_path, "%.50s/%.50s", folder, entry->d_name);
    }
    if (dir) closedir(dir);
    int to = socket(AF_UNIX, SOCK_STREAM, 0);
    struct timeval patience = {5, 0};
    setsockopt(to, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ssize_t length = strlen(request), got = 0;
    int is_there = connect(to, (void *)&address, sizeof address) == 0 &&
                   send(to, request, length, MSG_NOSIGNAL) == length &&
                   (got = recv(to, answer, size - 1, 0)) > 0;
    close(to);
    answer[got > 0 ? got : 0] = 0;
    return is_there;
}

// Prints the status that the process itself reports. False without an answer.
static inline int print_status(const char *folder) {
    char answer[4096];
    int is_there = ask(folder, "status\n", answer, sizeof answer);
    if (is_there) say(answer);
    return is_there;
}

// Waits until the process answers with its status.
static inline void wait_for_status(const char *folder) {
    for (int tries = 0; !print_status(folder); tries++) {
        if (tries == 300) fail("no answer at the control socket");
        wait_ms(20);
    }
}

// Waits until the process reports this text, in what it waits for or in what its watchdog cannot
// see.
static inline void wait_for_why(const char *folder, const char *says) {
    static char answer[1 << 16];
    for (int tries = 0; tries < 200; tries++) {
        if (ask(folder, "why\n", answer, sizeof answer) && strstr(answer, says)) return;
        wait_ms(200);
    }
    fail(says);
}

// SPDX-License-Identifier: Apache-2.0
// A host whose file system for recordings, or whose log, stops responding: PLUGIN WHEN.
//   begin  before the first communicator, for a second
//   default  the same, in the default directory
//   later  while communicators are created and destroyed, each with an operation, for four seconds
//   hang   the same without their operations, and one operation hangs
//   log    the same, but NCCL's logger hangs
//   exit   from before the exit of the process on, forever
//   load   the same as `log`, and it is a thread that loads a library (the variable SLOW_LIBRARY)
//   late   refuses the recording after 100 ms
//   slow   takes 6 ms for each write, and records come faster: is a dump made?
// Prints the duration of the slowest call of each function, in milliseconds.
#include "host.h"
#include <stdarg.h>
#include <sys/syscall.h>

static volatile int files_stall, log_stalls, refuses, write_ms;

// A descriptor may have been duplicated since it was opened.
static int is_recording(int fd) {
    char link[32], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, ".nscope") != NULL;
}

static void wait_for_files(int fd) {
    while (files_stall && is_recording(fd)) wait_ms(1);
}

// The plugin calls these functions: the program's symbols override those of the C library.
int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int);
    va_end(more);
    int ours = strstr(path, ".nscope") != NULL;
    while (ours && files_stall) wait_ms(1);
    if (ours && refuses) {
        wait_ms(100);
        errno = EACCES;
        return -1;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int mkdir(const char *path, mode_t mode) {
    while (files_stall && strstr(path, "/ncclscope-")) wait_ms(1);
    return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) {
    wait_for_files(fd);
    if (write_ms && is_recording(fd)) wait_ms(write_ms);
    return syscall(SYS_pwrite64, fd, bytes, count, at);
}

int ftruncate64(int fd, off64_t length) {
    wait_for_files(fd);
    return (int)syscall(SYS_ftruncate, fd, length);
}

static void log_line(int level, unsigned long flags, const char *file, int line, const char *format,
                     ...) {
    (void)level, (void)flags, (void)file, (void)line, (void)format;
    while (log_stalls) wait_ms(1);
}

static void *join(uint64_t hash) {
    void *context = NULL;
    if (nccl->init(&context, hash, &mask, "host", 1, 2, 0, (void *)log_line) != 0 || !context)
        fail("init");
    return context;
}

static void slowest(double *most, double begin) {
    double took = (seconds() - begin) * 1e3;
    if (took > *most) *most = took;
}

static volatile double told;
static void on_hang(const char *json, void *user) {
    (void)user;
    if (strstr(json, "\"hung\"") && told == 0) told = seconds();
}

static double most_init, most_finalize, most_mark, most_step, most_start, most_stop;

// The C interface, looked up early: a lookup waits for a thread that loads a library.
static int (*mark)(const char *), (*set_step)(uint64_t), (*start)(const char *), (*stop)(void);

static void live(double length, int is_busy) {
    double until = seconds() + length;
    for (uint64_t n = 0; seconds() < until; n++) {
        double begin = seconds();
        void *other = join(0x100 + n);
        slowest(&most_init, begin);
        if (is_busy) all_reduce(other, n);
        char name[32];
        snprintf(name, sizeof name, "mark %d", (int)(n % 100));
        begin = seconds();
        if (mark(name) != 0) fail("mark");
        slowest(&most_mark, begin);
        begin = seconds();
        if (set_step(n) != 0) fail("set_step");
        slowest(&most_step, begin);
        begin = seconds();
        if (n % 10 == 9 && stop() != 0) fail("stop");
        slowest(&most_stop, begin);
        begin = seconds();
        if (n % 10 == 9 && start(NULL) != 0) fail("start");
        slowest(&most_start, begin);
        begin = seconds();
        nccl->finalize(other);
        slowest(&most_finalize, begin);
        wait_ms(5);
    }
}

static volatile int is_loading;
static void *load_library(void *unused) {
    is_loading = 1;
    if (!dlopen(getenv("SLOW_LIBRARY"), RTLD_NOW)) fail(dlerror());
    is_loading = 0;
    return unused;
}

// Runs on a thread that has not called the plugin before.
static void *live_on_thread(void *length) {
    live(*(double *)length, 0);
    return NULL;
}

static volatile int is_over;
static void *flood(void *first) {
    for (uint64_t n = 0; !is_over; n++) {
        all_reduce(comm, *(uint64_t *)first + n);
        if (n % 100 == 0) wait_ms(1);
    }
    return NULL;
}

// The duration of a dump while two threads record faster than the file system writes.
static void dump_in_flood(void) {
    int (*dump)(const char *) = function("ncclscope_dump");
    static uint64_t firsts[2] = {1000, 1000000000};
    pthread_t threads[2];
    write_ms = 6;
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, flood, &firsts[i]);
    wait_ms(2000);
    double begin = seconds();
    int result = dump(NULL);
    dprintf(1, "dump %.3f\n", result == 0 ? (seconds() - begin) * 1e3 : -1.0);
    is_over = 1;
    write_ms = 0;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

static double main_ends;
static void tell_exit(void) {
    dprintf(1, "exit %.3f\nsurvived\n", (seconds() - main_ends) * 1e3);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    const char *when = argv[2];
    // Registered before the plugin's handler, which therefore runs first.
    atexit(tell_exit);
    refuses = strcmp(when, "late") == 0;
    load(argv[1]);
    mark = function("ncclscope_mark");
    set_step = function("ncclscope_set_step");
    start = function("ncclscope_start");
    stop = function("ncclscope_stop");
    int (*listen)(void *, void *) = function("ncclscope_on_hang");
    if (listen((void *)on_hang, NULL) != 0) fail("on_hang");
    int is_default = strcmp(when, "default") == 0, begins = strcmp(when, "begin") == 0 || is_default;
    if (is_default) unsetenv("NCCLSCOPE_DIR"), unsetenv("SLURM_TMPDIR");
    files_stall = begins;
    double begin = seconds();
    comm = join(0xc0ffee);
    slowest(&most_init, begin);
    for (int i = 0; i < 1000; i++) all_reduce(comm, i);
    if (begins) {
        wait_ms(1000);
        files_stall = 0;
    }
    if (strcmp(when, "later") == 0) {
        wait_ms(1000);
        files_stall = 1;
        live(4, 1);
        files_stall = 0;
    }
    if (strcmp(when, "late") == 0) wait_ms(300);
    if (strcmp(when, "slow") == 0) dump_in_flood();
    if (strcmp(when, "hang") == 0 || strcmp(when, "log") == 0 || strcmp(when, "load") == 0) {
        pthread_t loader, other;
        int loads = strcmp(when, "load") == 0;
        wait_ms(1000);
        if (loads) pthread_create(&loader, NULL, load_library, NULL);
        while (loads && !is_loading) wait_ms(1);
        wait_ms(loads ? 100 : 0);
        files_stall = when[0] == 'h';
        log_stalls = strcmp(when, "log") == 0;
        // An operation that hangs: its step waits for the network.
        char arguments[16] = {0};
        void *coll = event(comm, 2, NULL, 1000), *op = event(comm, 8, coll, 0);
        void *step = event(comm, 16, op, 0);
        nccl->record(step, 8, arguments);
        nccl->stop(coll);
        double hung = seconds();
        double length = 4;
        pthread_create(&other, NULL, live_on_thread, &length);
        pthread_join(other, NULL);
        if (loads && !is_loading) fail("the library is loaded too soon");
        double after = told == 0 ? -1 : told - hung;
        files_stall = log_stalls = 0;
        nccl->stop(step);
        nccl->stop(op);
        if (loads) pthread_join(loader, NULL);
        dprintf(1, "told after %.2f s\n", after);
    }
    dprintf(1, "init %.3f\nfinalize %.3f\nmark %.3f\nset_step %.3f\nstart %.3f\nstop %.3f\n",
            most_init, most_finalize, most_mark, most_step, most_start, most_stop);
    files_stall = strcmp(when, "exit") == 0;
    begin = seconds();
    nccl->finalize(comm);
    dprintf(1, "last finalize %.3f\n", (seconds() - begin) * 1e3);
    main_ends = seconds();
    return 0;
}

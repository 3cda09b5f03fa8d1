// SPDX-License-Identifier: Apache-2.0
// An ordinary host: PLUGIN OPERATIONS. With STATIC_TLS it has this many bytes of static
// thread-local storage, like OpenMP's threadprivate arrays and Fortran's COMMON blocks. With
// LATE_MS, a thread that starts another one does not run for that time afterwards (link it with
// -rdynamic).
#include "host.h"

#ifdef STATIC_TLS
__thread char storage[STATIC_TLS];
#endif

#ifdef LATE_MS
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *),
                   void *argument) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    real = dlsym(RTLD_NEXT, "pthread_create");
    int error = real(thread, attributes, body, argument);
    wait_ms(LATE_MS);
    return error;
}
#endif

int main(int argc, char **argv) {
    if (argc != 3) return 2;
#ifdef STATIC_TLS
    ((volatile char *)storage)[STATIC_TLS - 1] = 1;
#endif
    load(argv[1]);
    comm = init(0xc0ffee);
    for (int i = 0; i < atoi(argv[2]); i++) {
        all_reduce(comm, i);
        if (i % 100 == 0) wait_ms(10);
    }
    nccl->finalize(comm);
    say("survived\n");
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records some training steps, copies the recording, and prints what hangs.
 *
 * Call these functions once a communicator exists: NCCL has loaded the plugin by then, and dlopen
 * finds it by its SONAME. Build with `-I include`, and with `-ldl` if the C library needs it.
 */
#include <dlfcn.h>
#include <stdio.h>

#include "ncclscope.h"

/* The plugin that NCCL has loaded; NULL if it has loaded none. */
static void* find_plugin(void)
{
    return dlopen("libnccl-profiler-ncclscope.so", RTLD_NOW | RTLD_NOLOAD);
}

/* Records `steps` training steps, each run by `train`, and copies the recording to the directory
 * `copy`. Returns a result of ncclscope.h. */
static int record_steps(void* plugin, uint64_t steps, void (*train)(uint64_t step), const char* copy)
{
    NCCLSCOPE_FIND(plugin, ncclscope_start);
    NCCLSCOPE_FIND(plugin, ncclscope_stop);
    NCCLSCOPE_FIND(plugin, ncclscope_mark);
    NCCLSCOPE_FIND(plugin, ncclscope_set_step);
    NCCLSCOPE_FIND(plugin, ncclscope_dump);
    NCCLSCOPE_FIND(plugin, ncclscope_error);
    if (!ncclscope_start || !ncclscope_stop || !ncclscope_mark || !ncclscope_set_step ||
        !ncclscope_dump || !ncclscope_error)
        return NCCLSCOPE_OFF;

    int result = ncclscope_start(NULL);
    if (result == NCCLSCOPE_OK) result = ncclscope_mark("warm");
    for (uint64_t step = 0; step < steps && result == NCCLSCOPE_OK; step++) {
        result = ncclscope_set_step(step);
        train(step);
    }
    if (result == NCCLSCOPE_OK) result = ncclscope_stop();
    if (result == NCCLSCOPE_OK) result = ncclscope_dump(copy);
    if (result != NCCLSCOPE_OK) fprintf(stderr, "ncclscope: %s\n", ncclscope_error());
    return result;
}

/* Runs on a thread of the plugin. Prints a line of JSON (docs/hang.md) per hang, and per end. */
static void print_hang(const char* json, void* file)
{
    fprintf((FILE*)file, "%s\n", json);
    fflush((FILE*)file);
}

/* Prints hangs to `file` from now on. To end the job instead of waiting, abort the communicator as
 * docs/hang.md shows. Returns a result of ncclscope.h. */
static int print_hangs(void* plugin, FILE* file)
{
    NCCLSCOPE_FIND(plugin, ncclscope_on_hang);
    return ncclscope_on_hang ? ncclscope_on_hang(print_hang, file) : NCCLSCOPE_OFF;
}

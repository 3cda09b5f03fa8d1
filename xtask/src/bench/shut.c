// SPDX-License-Identifier: Apache-2.0
/*
 * Two plugins that claim every event and then give out null handles alone.
 *
 * SHUT: its callbacks are those of the plugin NCCLSCOPE_BENCH_PLUGIN, which asks for no event, and
 * so is called with its gate shut. REFUSING: its callbacks do nothing; what they cost is the call.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "table.h"

/* Everything but ProxyCtrl, as floor.c has it. */
enum { MASK = 0xfdf };

static struct table inner;

static int init(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks,
                int rank, void *logger) {
  int result = inner.init(context, id, mask, name, nodes, ranks, rank, logger);
  *mask = MASK;
  return result;
}

#ifdef REFUSING
static int init_none(void **context, uint64_t id, int *mask, const char *name, int nodes,
                     int ranks, int rank, void *logger) {
  (void)id, (void)mask, (void)name, (void)nodes, (void)ranks, (void)rank, (void)logger;
  *context = &inner;
  return 0;
}

static int start(void *context, void **handle, void *event) {
  (void)context, (void)event;
  *handle = NULL;
  return 0;
}

static int stop(void *handle) {
  (void)handle;
  return 0;
}

static int record(void *handle, int state, void *args) {
  (void)handle, (void)state, (void)args;
  return 0;
}

static void load(void) { inner = (struct table){"refusing", init_none, start, stop, record, stop}; }
#else
static void load(void) {
  const char *path = getenv("NCCLSCOPE_BENCH_PLUGIN");
  void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  struct table *table = library ? dlsym(library, "ncclProfiler_v6") : NULL;
  if (!table) {
    fprintf(stderr, "shut.c: no plugin in NCCLSCOPE_BENCH_PLUGIN\n");
    _Exit(1);
  }
  inner = *table;
}
#endif

__attribute__((visibility("default"))) struct table ncclProfiler_v6;

__attribute__((constructor)) static void begin(void) {
  load();
  ncclProfiler_v6 = inner;
  ncclProfiler_v6.init = init;
}

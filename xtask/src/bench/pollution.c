// SPDX-License-Identifier: Apache-2.0
/*
 * pollution PLUGIN KIB: network steps of 32 proxy ops, with KIB of other memory touched between two
 * polls of the proxy thread: what callbacks cost when the caches are full of something else.
 *
 * Only the callbacks are timed, those of a poll together. Prints what the neutral driver prints of
 * a proxy thread under --bulk; an operation is a poll here.
 *
 * The descriptor is that of NCCL's profiler_v6.h@v2.30.7-1, as far as used.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#include "table.h"

enum { OPS = 32, STEPS = 32, ROUNDS = 24, WARM = 4, POLLS = STEPS * (ROUNDS - WARM) };
enum { PROXY_OP = 8, PROXY_STEP = 16 };
enum { SEND_GPU = 8, SEND = 9, RECV = 10, FLUSH = 11, RECV_GPU = 12, SEND_PEER = 20 };

struct descriptor {
  uint64_t type;
  void *parent;
  int rank;
  union {
    struct {
      pid_t pid;
      uint8_t channel;
      int peer, steps, chunk, is_send;
    } op;
    int step;
    char room[96];
  };
};

static struct table *plugin;
static void *context;
static unsigned long calls, refused;
static int errors;

static void *start(struct descriptor *descriptor) {
  void *handle = NULL;
  errors += plugin->start(context, &handle, descriptor) != 0;
  calls++;
  refused += handle == NULL;
  return handle;
}

static void record(void *handle, int state) {
  uint64_t bytes = 1 << 19;
  errors += plugin->record(handle, state, &bytes) != 0;
  calls++;
}

static void stop(void *handle) {
  errors += plugin->stop(handle) != 0;
  calls++;
}

/* One step of each operation, from its start to its stop. */
static void poll(void **ops, int step) {
  static const int states[2][3] = {{RECV, FLUSH, RECV_GPU}, {SEND_GPU, SEND_PEER, SEND}};
  for (int op = 0; op < OPS; op++) {
    struct descriptor descriptor = {.type = PROXY_STEP, .parent = ops[op], .step = step};
    void *handle = ops[op] ? start(&descriptor) : NULL;
    if (!handle) continue;
    for (int state = 0; state < 3; state++) record(handle, states[op & 1][state]);
    stop(handle);
  }
}

static int ascending(const void *one, const void *other) {
  uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
  return (a > b) - (a < b);
}

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int main(int argc, char **argv) {
  void *library = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  plugin = library ? dlsym(library, "ncclProfiler_v6") : NULL;
  if (!plugin) {
    fprintf(stderr, "pollution PLUGIN KIB: %s\n", argc == 3 ? dlerror() : "two arguments");
    return 2;
  }
  size_t bytes = strtoul(argv[2], NULL, 10) << 10;
  volatile char *other = calloc(bytes, 1);
  static uint64_t polls[POLLS];
  int mask = 0;
  errors += plugin->init(&context, 0xbe7c, &mask, "pollution", 2, 2, 0, NULL) != 0;
  uint64_t ns = now_ns(), ticks = __rdtsc(), timed = 0, counted = 0;
  for (int round = 0; round < ROUNDS; round++) {
    void *ops[OPS];
    for (int op = 0; op < OPS; op++) {
      struct descriptor descriptor = {.type = PROXY_OP};
      descriptor.op.pid = getpid();
      descriptor.op.channel = (uint8_t)(op / 2);
      descriptor.op.peer = 1;
      descriptor.op.steps = STEPS;
      descriptor.op.chunk = 1 << 19;
      descriptor.op.is_send = op & 1;
      ops[op] = start(&descriptor);
    }
    unsigned long before = calls;
    for (int step = 0; step < STEPS; step++) {
      for (size_t at = 0; at < bytes; at += 64) other[at]++;
      uint64_t begin = __rdtsc();
      poll(ops, step);
      if (round >= WARM) polls[timed++] = __rdtsc() - begin;
    }
    if (round >= WARM) counted += calls - before;
    for (int op = 0; op < OPS; op++)
      if (ops[op]) stop(ops[op]);
  }
  double hz = (double)(__rdtsc() - ticks) / (double)(now_ns() - ns);
  plugin->finalize(context);
  qsort(polls, POLLS, sizeof polls[0], ascending);
  printf("{\"ops\":%d,\"errors\":%d,\"null_handles\":{", POLLS, errors);
  if (refused) printf("\"ProxyStep\":%lu", refused);
  printf("},\"proxy\":{\"calls\":%lu,\"busy_p50\":%.1f}}\n", counted, polls[POLLS / 2] / hz);
  return 0;
}

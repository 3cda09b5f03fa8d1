// SPDX-License-Identifier: Apache-2.0
/* ncclProfiler_v6_t of NCCL's profiler_v6.h@v2.30.7-1: a name and five functions. */
#include <stdint.h>

struct table {
  const char *name;
  int (*init)(void **, uint64_t, int *, const char *, int, int, int, void *);
  int (*start)(void *, void **, void *);
  int (*stop)(void *);
  int (*record)(void *, int, void *);
  int (*finalize)(void *);
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
A profiler plugin of one API version (`-DAPI=1`, `2`, ...) that writes every callback, one a line,
with all that the descriptor says: to compare the callbacks that it gets alone and behind another.

Its handles are addresses of its own events, which it keeps forever and dereferences: a handle that
is not its own is `BAD`. Names instead of addresses: events are numbered as they come; buffers and
streams are only there or not; times of GPUs too.

Variables: CHAINED_LOG (the log's path, to which ".vAPI" is added), CHAINED_MASK (events asked for;
all), CHAINED_LATER (a mask that it writes when its first communicator has begun, from a thread of
its own), CHAINED_NULL (bits of events that get no handle), CHAINED_FAIL (`init` of these versions,
as bits, fails).
*/
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OWN = 0x0e7e47, OTHER_PROCESS = 1 << 30 };

struct event { int magic, id; unsigned type; };
struct context { int magic, id; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *file;
static int events, contexts;

static unsigned number(const char *name, unsigned otherwise) {
  const char *text = getenv(name);
  return text ? (unsigned)strtoul(text, NULL, 0) : otherwise;
}

/* The caller holds the lock. */
static void out(const char *format, ...) {
  if (!file) {
    char path[4096];
    const char *log = getenv("CHAINED_LOG");
    snprintf(path, sizeof path, "%s.v%d", log ? log : "/dev/null", API);
    file = fopen(log ? path : log, "a");
    if (!file) abort();
  }
  va_list args;
  va_start(args, format);
  vfprintf(file, format, args);
  va_end(args);
}

static void line(void) { fputc('\n', file); fflush(file); }

enum kind { END, I8, I32, I64, PTR, STR, BIT, TIME, PID, LINK };
struct field { const char *name; int at; enum kind kind; };

/* Offsets of fields by API version from 1 on, -1 where there is none (profiler_v*.h); versions
after the last one have the same as that. */
static int offset(const int *by_version, int count) {
  return by_version[(API < count ? API : count) - 1];
}
#define AT(...) offset((int[]){__VA_ARGS__}, sizeof (int[]){__VA_ARGS__} / sizeof(int))
#define FROM4(at) AT(-1, -1, -1, at)
#define FROM7(at) AT(-1, -1, -1, -1, -1, -1, at)
#define NAME (API == 1 ? I8 : STR)

static void fields(unsigned type, const struct field **found) {
  static struct field coll[24], p2p[12], op[8], step[2], kernel[3], net[3], group_api[3],
      coll_api[8], p2p_api[8], launch[2], ce[16], sync[3], batch[4], phase[5], none[1];
  static int done;
  if (!done) {
    done = 1;
    struct field c[] = {
        {"name", AT(24, 24, 24, -1), PTR},
        {"hash", AT(32, 32, 32, -1), I64},
        {"seq", AT(40, 40, 40, 24), I64},
        {"func", AT(48, 48, 48, 32), NAME},
        {"send", AT(56, 56, 56, 40), PTR},
        {"recv", AT(64, 64, 64, 48), PTR},
        {"count", AT(72, 72, 72, 56), I64},
        {"root", AT(80, 80, 80, 64), I32},
        {"type", AT(84, 88, 88, 72), NAME},
        {"traffic", AT(96, 96, -1), I64},
        {"channels", AT(104, 104, 96, 80), I8},
        {"warps", AT(105, 105, 97, 81), I8},
        {"algo", AT(106, 112, 104, 88), NAME},
        {"proto", AT(107, 120, 112, 96), NAME},
        {"group", AT(-1, -1, -1, -1, 104), LINK}, {"variant", FROM7(112), STR},
        {"symmetric", FROM7(120), BIT}, {"tag", FROM7(128), I64}};
    /* Channels of a P2p are garbage in version 4 from NCCL 2.28 on. */
    struct field p[] = {
        {"name", AT(24, 24, 24, -1), PTR},
        {"hash", AT(32, 32, 32, -1), I64},
        {"func", AT(40, 40, 40, 24), NAME},
        {"buff", AT(48, 48, 48, 32), PTR},
        {"type", AT(56, 56, 56, 40), NAME},
        {"count", AT(64, 64, 64, 48), I64},
        {"peer", AT(72, 72, 72, 56), I32},
        {"channels", AT(-1, -1, -1, -1, 60), I8},
        {"group", AT(-1, -1, -1, -1, 64), LINK}, {"tag", FROM7(72), I64}};
    struct field o[] = {{"pid", 24, PID}, {"channel", 28, I8}, {"peer", 32, I32},
        {"steps", 36, I32}, {"chunk", 40, I32}, {"send", 44, I32}};
    struct field s[] = {{"step", 24, I32}};
    struct field k[] = {{"channel", 24, I8}, {"timer", FROM4(32), TIME}};
    struct field n[] = {{"id", 24, I64}, {"data", 32, PTR}};
    struct field ga[] = {{"graph", 24, BIT}, {"depth", 28, I32}};
    struct field ca[] = {{"func", 24, STR}, {"count", 32, I64}, {"type", 40, STR},
    {"root", 48, I32},
        {"stream", 56, PTR}, {"graph", 64, BIT}, {"tag", FROM7(72), I64}};
    struct field pa[] = {{"func", 24, STR}, {"count", 32, I64}, {"type", 40, STR},
        {"stream", 48, PTR}, {"graph", 56, BIT}, {"tag", FROM7(64), I64}};
    struct field l[] = {{"stream", 24, PTR}};
    struct field e[] = {{"seq", 24, I64}, {"func", 32, STR}, {"send", 40, PTR}, {"recv", 48, PTR},
        {"count", 56, I64}, {"root", 64, I32}, {"type", 72, STR}, {"sync", 80, STR},
        {"intra", 88, BIT},
        {"batch", 92, I32}, {"batches", 96, I32}, {"ceseq", 100, I32}, {"stream", 104, PTR},
        {"tag", FROM7(112), I64}};
    struct field y[] = {{"complete", 24, BIT}, {"ranks", 28, I32}};
    struct field b[] = {{"ops", 24, I32}, {"bytes", 32, I64}, {"intra", 40, BIT}};
    struct field h[] = {{"channel", 24, I8}, {"phase", 25, I8}, {"name", 32, STR},
    {"timer", 40, TIME}};
#define KEEP(to, from) memcpy(to, from, sizeof from)
    KEEP(coll, c); KEEP(p2p, p); KEEP(op, o); KEEP(step, s); KEEP(kernel, k); KEEP(net, n);
    KEEP(group_api, ga); KEEP(coll_api, ca); KEEP(p2p_api, pa); KEEP(launch, l); KEEP(ce, e);
    KEEP(sync, y); KEEP(batch, b); KEEP(phase, h);
  }
  switch (type) {
    case 2: *found = coll; break;
    case 4: *found = p2p; break;
    case 8: *found = op; break;
    case 16: *found = step; break;
    case 64: *found = kernel; break;
    case 128: *found = net; break;
    case 256: *found = group_api; break;
    case 512: *found = coll_api; break;
    case 1024: *found = p2p_api; break;
    case 2048: *found = launch; break;
    case 4096: *found = ce; break;
    case 8192: *found = sync; break;
    case 16384: *found = batch; break;
    case 32768: *found = phase; break;
    default: *found = none;
  }
}

/* One of our events by its number; a foreign pointer crashes, or is detected by its magic. */
static void link_to(const char *name, const struct event *event) {
  if (!event) out(" %s=-", name);
  else if (event->magic != OWN) out(" %s=BAD", name);
  else out(" %s=%d", name, event->id);
}

static void field(const struct field *f, const char *bytes) {
  int64_t value = 0;
  const void *pointer = NULL;
  if (f->at < 0) return;
  memcpy(&pointer, bytes + f->at, f->kind >= PTR && f->kind <= STR ? 8 : 0);
  memcpy(&value, bytes + f->at, f->kind == I64 || f->kind == TIME
      ? 8 : f->kind == I32 || f->kind == PID ? 4 : 1);
  switch (f->kind) {
    case PTR: out(" %s=%s", f->name, pointer ? "there" : "-"); break;
    case STR: out(" %s=%s", f->name, pointer ? (const char *)pointer : "-"); break;
    case BIT: case TIME: out(" %s=%d", f->name, value != 0); break;
    case PID: out(" %s=%s", f->name, (int)value == getpid() ? "own" : "other"); break;
    case LINK: memcpy(&pointer, bytes + f->at, 8); link_to(f->name, pointer); break;
    default: out(" %s=%lld", f->name, (long long)value);
  }
}

static int is_of_other_process(unsigned type, const char *bytes) {
  int pid;
  memcpy(&pid, bytes + 24, 4);
  return type == 8 && pid != getpid();
}

static int start(void *context, void **handle, const char *bytes) {
  uint64_t wide;
  struct event *parent;
  const struct field *f;
  int rank;
  memcpy(&wide, bytes, 8);
  memcpy(&parent, bytes + 8, 8);
  memcpy(&rank, bytes + 16, 4);
  unsigned type = API <= 4 ? (unsigned char)bytes[0] : (unsigned)wide;
  int foreign = is_of_other_process(type, bytes);
  pthread_mutex_lock(&lock);
  struct event *event = NULL;
  if (!(number("CHAINED_NULL", 0) & type)) {
    event = malloc(sizeof *event);
    *event = (struct event){OWN, ++events, type | (foreign ? OTHER_PROCESS : 0)};
  }
  *handle = event;
  out("start %d %u", event ? event->id : 0, type);
  /* As any plugin must, it does not dereference pointers of another process. */
  if (foreign) out(" ctx=? parent=?");
  else {
    int child = parent && parent->magic == OWN && parent->type & OTHER_PROCESS;
    if (child) out(" ctx=?");
    else out(" ctx=%d", context ? ((struct context *)context)->id : -1);
    link_to("parent", parent);
  }
  out(" rank=%d", rank);
  for (fields(type, &f); f->name; f++) field(f, bytes);
  line();
  pthread_mutex_unlock(&lock);
  return 0;
}

static int stop(struct event *event) {
  if (!event) return 0;
  pthread_mutex_lock(&lock);
  if (event->magic == OWN) out("stop %d", event->id);
  else out("stop BAD");
  line();
  pthread_mutex_unlock(&lock);
  return 0;
}

static int record(struct event *event, int state, const char *args) {
  if (!event) return 0;
  pthread_mutex_lock(&lock);
  if (event->magic == OWN) out("state %d %d", event->id, state);
  else out("state BAD %d", state);
  int32_t word = 0;
  int64_t wide = 0;
  if (args) {
    memcpy(&word, args, 4);
    memcpy(&wide, args, 8);
  }
  /* Logs only what the state defines: the rest may be garbage. */
  if (state >= 13 && state <= 18) out(args ? " %d" : " NULL", word);
  else if (API >= 4 && (state == 9 || state == 11)) out(args ? " %lld" : " NULL", (long long)wide);
  else if (state == 22 || state == 31) out(" %s", !args ? "NULL" : wide ? "time" : "0");
  else if (state <= 7) out(" %s", args ? "args" : "NULL");
  line();
  pthread_mutex_unlock(&lock);
  return 0;
}

static int finalize(struct context *context) {
  pthread_mutex_lock(&lock);
  out("finalize %d", context && context->magic == OWN ? context->id : -1);
  line();
  pthread_mutex_unlock(&lock);
  return 0;
}

static void *later(void *mask) {
  usleep(20000);
  __atomic_store_n((int *)mask, number("CHAINED_LATER", 0), __ATOMIC_RELAXED);
  return NULL;
}

static int begin(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks,
                 int rank, void *logger) {
  if (number("CHAINED_FAIL", 0) & 1u << API) return 3;
  pthread_mutex_lock(&lock);
  struct context *own = malloc(sizeof *own);
  *own = (struct context){OWN, ++contexts};
  *context = own;
  out("init %d mask=%x %s %llx %d %d %d %s", own->id, *mask, name ? name : "-",
      (unsigned long long)hash, nodes, ranks, rank, logger ? "logger" : "-");
  line();
  int first = contexts == 1;
  pthread_mutex_unlock(&lock);
  if (first || !getenv("CHAINED_LATER")) *mask = number("CHAINED_MASK", 0xffffff);
  if (first && getenv("CHAINED_LATER")) {
    pthread_t thread;
    pthread_create(&thread, NULL, later, mask);
    pthread_detach(thread);
  }
  return 0;
}

#if API <= 3
static int init(void **context, int *mask) { return begin(context, mask, NULL, 0, 0, 0, -1, NULL); }
#elif API == 4
static int init(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks,
                int rank, void *logger) {
  return begin(context, mask, name, hash, nodes, ranks, rank, logger);
}
#else
static int init(void **context, uint64_t hash, int *mask, const char *name, int nodes, int ranks,
                int rank, void *logger) {
  return begin(context, mask, name, hash, nodes, ranks, rank, logger);
}
#endif

struct table { const char *name; void *init, *start, *stop, *record, *finalize; };
#define JOIN(a, b) a##b
#define EXPORT(api) struct table JOIN(ncclProfiler_v, api)
EXPORT(API) = {"logging", init, start, stop, record, finalize};
